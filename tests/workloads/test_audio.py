"""Speech: its coefficients, its files, and a network that learns to tell speakers apart."""

import wave

import numpy as np
import pytest
import torch
from scipy.fft import dct
from workloads.real_format import write_speech
from workloads.training import trained

from atomo.errors import ConfigError, DataError
from atomo.workloads import Workload, make_task
from atomo.workloads.audio.clips import features
from atomo.workloads.audio.mfcc import mfcc, triangles


@pytest.fixture
def folder(tmp_path):
    write_speech(tmp_path / "vivos", train=4, test=2)
    return tmp_path


def opened(folder) -> Workload:
    return make_task("audio(hidden=4)").open("VIVOS", folder)


def recorded(path, samples: int = 400, channels: int = 1, width: int = 2, rate: int = 16_000):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(b"\1" * (samples * channels * width))


@pytest.mark.slow
def test_three_processes_tell_voices_apart(tmp_path):
    write_speech(tmp_path / "vivos")
    chosen = {"optimizer": "adam", "lr": 0.01, "max_steps": 20, "batch_size": 8, "code": "sgd"}
    values = trained(tmp_path, task="audio(hidden=16)", **chosen)
    assert values["accuracy"] > 0.9
    assert values["f1"] > 0.9


def test_coefficients_by_the_definition():
    sound = np.random.default_rng(1).normal(0, 0.1, 1000)
    coefficients = mfcc(torch.from_numpy(sound).float())
    assert coefficients.shape == (13, 4)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512)
    for frame in range(4):
        power = np.abs(waves @ (sound[160 * frame :][:400] * window)) ** 2 / 512
        bands = np.log(power @ triangles().double().numpy())
        expected = dct(bands, type=2, norm="ortho")[:13]
        np.testing.assert_allclose(coefficients[:, frame], expected, rtol=1e-4, atol=1e-4)


def test_bands_rise_and_fall_around_centres_that_are_even_in_mels():
    centres = triangles().argmax(0) * 8000 / 256
    mels = 2595 * torch.log10(1 + centres / 700)
    step = 2595 * np.log10(1 + 8000 / 700) / 41
    assert ((mels / step - torch.arange(1, 41)).abs() < 0.5).all()
    assert 0.5 < triangles().amax(0).min() <= triangles().max() <= 1


def test_a_second_is_read_and_what_is_short_ends_in_zeros(tmp_path):
    recorded(tmp_path / "long.wav", 160_000)
    recorded(tmp_path / "short.wav", 400 + 160)
    assert features(tmp_path / "long.wav").shape == (13, 100)
    short = features(tmp_path / "short.wav")
    assert short[:, :2].all()
    assert not short[:, 2:].any()


def test_a_batch_has_the_speakers_of_its_prompts(folder):
    work = opened(folder)
    batch = work.train.batch(torch.tensor([3, 0, 3]))
    assert batch.targets.tolist() == [1, 0, 1]  # genders take turns: f, m, f, m
    assert torch.equal(batch.inputs[0][0], batch.inputs[0][2])
    assert torch.equal(work.train.batch(torch.tensor([0])).inputs[0][0], batch.inputs[0][1])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("test/genders.txt", "VIVOSSPK00 x\n", "line 1: 'VIVOSSPK00 x'; expected SPEAKER and one"),
        ("test/prompts.txt", "VIVOSSPK99_R001 A\n", "line 1: 'VIVOSSPK99_R001' is no SPEAKER_"),
        ("train/prompts.txt", "\n", "line 1: '' is no SPEAKER_NUMBER"),
        ("train/prompts.txt", "", "prompts.txt is empty"),
        ("train/prompts.txt", None, "cannot read"),
    ],
)
def test_bad_lists_are_named(folder, file, content, message):
    path = folder / "vivos" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError) as caught:
        opened(folder)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"channels": 2}, "a.wav has 2 channels, 16 bits, 16000 samples a second; it must have 1,"),
        ({"width": 1}, "1 channels, 8 bits"),
        ({"rate": 8000}, "8000 samples a second"),
        ({"samples": 399}, "has 399 samples; at least 400"),
    ],
)
def test_recordings_of_another_kind_are_named(tmp_path, how, message):
    recorded(tmp_path / "a.wav", **how)
    with pytest.raises(DataError) as caught:
        features(tmp_path / "a.wav")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"RIFF", b"not a wave file at all, but long enough of it"]
)
def test_what_is_no_recording_is_named(tmp_path, content):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.wav is no PCM wave file"):
        features(tmp_path / "a.wav")


def test_what_is_not_there_is_drawn(tmp_path):
    with pytest.raises(DataError, match=r"vivos/train is not there; expected train/prompts.txt"):
        opened(tmp_path)
    with pytest.raises(DataError, match=r"cannot read .*a\.wav: No such file"):
        features(tmp_path / "a.wav")
    with pytest.raises(ConfigError, match="hidden must be 1 to 4096, got 0"):
        make_task("audio(hidden=0)")
