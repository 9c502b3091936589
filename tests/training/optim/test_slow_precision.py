"""The caution about bfloat16 on processors that compute slowly in it."""

import pytest
import torch

from atomo.training.optim.precision import why_slow


@pytest.mark.parametrize(
    ("precision", "device", "capability", "bf16_instructions", "slow"),
    [
        ("bf16", "cpu", "AVX2", False, "several times"),
        ("bf16", "cpu", "AVX512", False, "twice"),
        ("bf16", "cpu", "AVX512", True, ""),
        ("bf16", "cpu", "DEFAULT", False, ""),  # of another architecture
        ("fp32", "cpu", "AVX2", False, ""),
        ("bf16", "meta", "AVX2", False, ""),
    ],
)
def test_bf16_is_slow_on_a_processor_without_its_instructions(
    monkeypatch, precision, device, capability, bf16_instructions, slow
):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16_instructions)
    why = why_slow(precision, torch.device(device))
    assert slow in why
    assert bool(why) == bool(slow)
    assert not slow or "--precision fp32 is faster" in why
