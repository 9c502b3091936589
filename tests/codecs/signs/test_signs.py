"""signSGD, Signum, EF-signSGD and 1-bit SGD against what their papers say."""

import pytest
import torch
from support.draws import normal, roundtrip
from torch import Generator, Size

from atomo.codecs.signs.efsignsgd import EFSignSGD
from atomo.codecs.signs.onebit import OneBit
from atomo.codecs.signs.signsgd import SignSGD, Signum
from atomo.errors import CodecError, ConfigError
from atomo.memory import MEMORIES, default_memory

ALL = [SignSGD(), Signum(), EFSignSGD(), OneBit()]


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_one_bit_an_entry_and_a_scale_or_two(codec):
    sections = codec.sections(codec.encode(normal(64, 100), Generator()))
    assert sections[0].numel() * 32 == 6400
    maximum = 2 * 64 if codec == OneBit() else 2  # of its columns
    assert sum(section.numel() for section in sections[1:]) <= maximum


def test_signsgd_decodes_to_the_sign():
    assert roundtrip(SignSGD(), normal(30, 40)).equal(normal(30, 40).sign())


def test_zero_votes_with_the_others_and_zeros_alone_abstain():
    assert roundtrip(SignSGD(), torch.tensor([0.0, -0.0, -3.0])).tolist() == [1.0, -1.0, -1.0]
    assert not roundtrip(SignSGD(), torch.zeros(3)).any()


@pytest.mark.parametrize("workers", [1, 3, 4, 6, 7, 100])
def test_the_majority_decides_and_ties_are_zero(workers):
    gradients = [normal(500, seed=seed) for seed in range(workers)]
    mean = torch.zeros(500)
    for gradient in gradients:
        SignSGD().add_decoded(SignSGD().encode(gradient, Generator()), mean, 1 / workers)
    SignSGD().finish(mean)
    assert mean.equal(torch.stack(gradients).sign().sum(0).sign())


def test_efsignsgd_is_the_mean_magnitude_with_the_sign():
    gradient = normal(30, 40)
    expected = gradient.abs().mean() * gradient.sign()
    torch.testing.assert_close(roundtrip(EFSignSGD(), gradient), expected)


def test_onebit_is_the_mean_of_either_sign():
    gradient = normal(30, 40) + 0.5
    negative = gradient < 0
    means = gradient[negative].mean(), gradient[~negative].mean()
    expected = torch.where(negative, *means)
    torch.testing.assert_close(roundtrip(OneBit(scope="layer"), gradient), expected)


@pytest.mark.parametrize("shape", [(30, 40), (7, 3, 3, 3), (1, 5), (200, 1), (3, 5000)])
def test_onebit_has_two_means_for_the_weights_of_each_unit(shape):
    gradient = normal(*shape) * torch.arange(1, shape[0] + 1).view(-1, *[1] * (len(shape) - 1))
    expected = torch.zeros(shape)
    for row, out in zip(gradient, expected, strict=True):
        for chosen in (row < 0, row >= 0):
            if chosen.any():
                out[chosen] = row[chosen].mean()
    torch.testing.assert_close(roundtrip(OneBit(), gradient), expected)


def test_onebit_decodes_what_had_two_means_for_a_layer():
    gradient = normal(30, 40)
    payload = OneBit(scope="layer").encode(gradient, Generator())
    assert OneBit().decode(payload, gradient.shape).unique().numel() == 2


def test_onebit_refuses_an_unknown_scope():
    with pytest.raises(ConfigError, match="scope must be one of column, layer; got 'row'"):
        OneBit(scope="row")


@pytest.mark.parametrize("codec", [EFSignSGD(), OneBit(), OneBit(scope="layer")], ids=str)
@pytest.mark.parametrize("strided", [False, True])
def test_the_residual_in_one_go_is_the_residual_in_three(codec, strided):
    gradient, residual = normal(50, 60), normal(50, 60, seed=2)
    expected_kept = residual + gradient
    expected = roundtrip(codec, expected_kept)
    residual = torch.stack([residual, residual], -1)[..., 0] if strided else residual
    payload = codec.encode_residual(gradient, residual, Generator())
    torch.testing.assert_close(codec.decode(payload, gradient.shape), expected)
    torch.testing.assert_close(residual, expected_kept - expected)


@pytest.mark.parametrize("codec", ALL, ids=str)
def test_strange_payloads_are_refused_and_leave_the_sum_unchanged(codec):
    payload, out = codec.encode(normal(8, 8), Generator()), torch.zeros(8, 8)
    words, remainder = codec.sections(payload)
    strange = [[words[:-1], remainder], [words, remainder[:0]], [words, torch.full((3,), 2.0)]]
    for sections in strange:
        with pytest.raises(CodecError, match=codec.id):
            codec.add_decoded(codec.assemble(iter(sections)), out)
        assert not out.any()


def test_each_has_the_memory_that_its_paper_gives_it():
    assert [default_memory(codec) for codec in ALL] == ["none", "momentum", "residual", "residual"]


def test_signum_sends_the_sign_of_a_moving_average():
    memory, average = MEMORIES["momentum"](), torch.zeros(6, 5)
    layout = {"weight": Size((6, 5))}
    for step in range(4):
        gradient = normal(6, 5, seed=step)
        average = 0.9 * average + 0.1 * gradient
        payload = memory.encode(Signum(), gradient.clone(), layout, Generator())
        assert Signum().decode(payload, average.shape).equal(average.sign())
        state = memory.state_dict()
        torch.testing.assert_close(state["weight"], average)
        memory = MEMORIES["momentum"]()  # as after a resume
        memory.load_state_dict(state)
