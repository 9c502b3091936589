"""Fixtures that every room's tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Several ranks share two cores in these tests, and a thread each is what they get."""
    torch.set_num_threads(1)
