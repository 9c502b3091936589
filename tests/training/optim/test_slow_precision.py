"""The caution about bfloat16 on processors that compute slowly in it."""

import pytest
import torch

from atomo.training.optim.precision import why_slow


@pytest.mark.parametrize(
    ("precision", "device", "capability", "slow"),
    [
        ("bf16", "cpu", "AVX2", True),
        ("bf16", "cpu", "AVX512", False),
        ("fp32", "cpu", "AVX2", False),
        ("bf16", "meta", "AVX2", False),
    ],
)
def test_bf16_is_slow_on_a_processor_without_avx512(
    monkeypatch, precision, device, capability, slow
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    why = why_slow(precision, torch.device(device))
    assert bool(why) == slow
    assert not slow or "--precision fp32 is faster" in why
