"""Settings in files: later ones win, options win over all, a run can be repeated, errors help."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.harness import run_threads, settings

from atomo.cli import main
from atomo.config.file import SETTINGS_FILE, read_settings, settings_text
from atomo.config.identity import record
from atomo.config.settings import Settings
from atomo.errors import ConfigError
from atomo.launch.cli_settings import parse_cli_settings
from atomo.launch.resolve import canonical_settings, resolve_settings
from atomo.training.checkpoints.checkpoint import load

CONFIGS = Path(__file__).parents[2] / "configs"
# What a published overlay lies over.
OVER = {"imagenet": ["imagenet/resnet50"], "dgc": ["cifar/resnet20", "dgc/wm5"],
        "atomo": ["atomo/cifar10"], "mergecomp": ["mergecomp/cifar100"],
        "dragonn": ["cifar/resnet20"], "language": ["language/ptb"]}  # fmt: skip


def read(*words: str) -> Settings:
    return parse_cli_settings(words, "train", "").settings


def written(folder: Path, text: str, name: str = "a.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_later_files_win_and_options_win_over_all(tmp_path):
    one = written(tmp_path, 'lr = 0.5\nnetwork = "FC"\nepochs = 3\n', "one.toml")
    two = written(tmp_path, "lr = 1\nbatch-size = 8\n", "two.toml")
    chosen = read("--n=4", "--config", one, two, "--epochs", "7")
    assert chosen == Settings(n=4, lr=1.0, network="FC", batch_size=8, epochs=7)
    assert read("--config", one, "--config", two).lr == 1.0
    assert read(f"--config={two}", "--config", one).lr == 0.5


def test_a_file_may_name_a_recipe_and_change_what_it_says(tmp_path):
    chosen = read("--config", written(tmp_path, 'recipe = "dgc"\nnesterov = false\n'))
    assert (chosen.code, chosen.nesterov) == ("dgc(ratio=0.001)", False)


def test_files_have_numbers_for_options_that_are_a_number_or_a_word(tmp_path):
    text = 'local-steps = 8\noverlap = 1\nmix = 0.5\ncomm-type = "Allgather"\n'
    chosen = read("--config", written(tmp_path, text))
    assert (chosen.local_steps, chosen.overlap, chosen.mix) == ("8", "1", "0.5")


def test_an_option_that_says_the_default_wins_as_well(tmp_path):
    assert read("--config", written(tmp_path, "n = 5\n"), "--n=3").n == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batchsize = 3", "there is no setting 'batchsiz"),
        ("lrr = 3", r"there is no setting 'lrr'; did you mean 'lr'\? known: n, hostfile"),
        ('lr = "fast"', r'lr = "fast": write a number'),
        ("lr = true", r"lr = true: write a number"),
        ("n = 3.0", r"n = 3\.0: write a whole number"),
        ("network = 5", r'network = 5: write a string, such as network = "\.\.\."'),
        ('nesterov = "yes"', r'nesterov = "yes": write true or false'),
        ("lr = 0", r"lr = 0\.0: --lr must be above 0, got 0"),
        ("lr = nan", r"lr = nan: --lr must be above 0, got nan"),
        ("epochs = 0", r"epochs = 0: --epochs must be at least 1, got 0"),
        ("[train]\nlr = 1", r"there is no setting 'train'"),
        ("lr.x = 1", r"lr = a table of its own, and settings are in none: write a number"),
        ("lr: 1", r"Expected '=' after a key .*such as network = \"ResNet20\""),
        ("lr = 1\nlr = 2", r"Cannot overwrite a value"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_name(text, message, tmp_path):
    path = written(tmp_path, text)
    if text.startswith("batchsize"):  # `-` and `_` make no difference
        assert read("--config", path).batch_size == 3
        return
    with pytest.raises(ConfigError, match=f"--config {path}: {message}"):
        read("--config", path)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["missing", "no text"])
def test_a_file_that_cannot_be_read_ends_the_command_with_code_2(content, tmp_path, capsys):
    path = tmp_path / "a.toml"
    if content:
        path.write_bytes(content)
    assert main(["train", "--config", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"atomo train: --config {path}: ")


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(),
        Settings(lr=1e-5, nesterov=True, image_size=32, mpi_args='--mca "a b" \\ \x7f\t é'),
        Settings(n=5, num_aggregate=3, code="topk", warmup_epochs=2, resume="/runs/x"),
    ],
)
def test_what_a_run_keeps_reads_back_as_the_same_settings(chosen, tmp_path):
    path = written(tmp_path, settings_text(chosen.resolved()))
    assert read("--config", path).resolved() == chosen.resolved()
    names = {line.partition(" = ")[0] for line in Path(path).read_text().splitlines()[2:]}
    left_out = {f.name for f in fields(Settings)} - names
    assert left_out <= {"train_dir"} | {f.name for f in fields(Settings) if f.default is None}


def test_files_keep_the_earlier_name_of_the_parameter_server(tmp_path):
    text = settings_text(Settings().resolved())
    assert 'comm_type = "Bcast"' in text.splitlines()
    for name in ("Bcast", "ParameterServer", "parameter-server"):
        path = written(tmp_path, f'comm_type = "{name}"')
        assert read("--config", path).resolved() == read(f"--comm-type={name}").resolved()
        assert settings_text(read("--config", path).resolved()) == text


def test_all_workers_stay_all_with_more_of_them(tmp_path):
    path = written(tmp_path, settings_text(Settings(n=3).resolved()))
    assert read("--config", path, "--n=6").resolved().num_aggregate == 5


@pytest.mark.slow
@pytest.mark.parametrize("way", [{}, {"comm_type": "Allgather", "n": 2}], ids=str)
def test_the_settings_in_a_folder_repeat_the_run(way, tmp_path):
    first = settings(tmp_path / "a", network="FC", code="qsgd", max_steps=3, seed=5, **way)
    run_threads(first)
    kept = tmp_path / "a" / SETTINGS_FILE
    again = read("--config", str(kept), "--train-dir", str(tmp_path / "b")).resolved()
    assert record(again) == record(first)
    run_threads(again)
    one, two = load(tmp_path / "a", 3).model, load(tmp_path / "b", 3).model
    assert all(tensor.equal(two[name]) for name, tensor in one.items())


def test_a_folder_is_named_after_the_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ["--config", *(str(CONFIGS / name) for name in ("cifar/resnet20.toml", "dgc/wm5.toml"))]
    run = parse_cli_settings(words, "train", "")
    assert run.name == "[cifar.resnet20]+[dgc.wm5]"
    folder = Path(resolve_settings(run.settings, run.name).train_dir)
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("[cifar.resnet20]+[dgc.wm5]-20")
    named = replace(run.settings, train_dir="x")
    assert resolve_settings(named, run.name).train_dir == str(tmp_path / "x")


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.rglob("*.toml")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_every_published_file_is_settings_of_a_run(path):
    own = read_settings([path])
    below = [] if "network" in own else [CONFIGS / f"{n}.toml" for n in OVER[path.parent.name]]
    chosen = canonical_settings(read("--config", *map(str, [*below, path])))
    for name, value in own.items():
        if name not in ("warmup_epochs", "code", "code_schedule"):
            assert getattr(chosen, name) == value
    assert path.read_text().startswith("# ")


def test_the_page_names_every_file():
    page = (CONFIGS.parent / "docs" / "recipes.md").read_text()
    for path in CONFIGS.rglob("*.toml"):
        assert f"{path.parent.name}/" in page, path
        assert f"`{path.stem}`" in page or f"/{path.stem}`" in page, path


def test_the_published_command_of_dgc_is_what_it_was():
    names = "cifar/resnet20 dgc/wm5 dgc/fp16 dgc/int32"
    chosen = read("--n=9", "--config", *(f"{CONFIGS / n}.toml" for n in names.split())).resolved()
    assert (chosen.network, chosen.epochs, chosen.memory) == ("ResNet20", 200, "dgc")
    assert chosen.peak_lr == pytest.approx(0.8)
    assert chosen.code_schedule.startswith("0: dgc(ratio=0.316228, values=fp16); 1: dgc(ratio=0.1,")


def test_published_files_are_found_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = read("--config", "configs/cifar/resnet20.toml", "configs/dgc/wm5.toml")
    assert (chosen.network, chosen.warmup_epochs) == ("ResNet20", 5)
    with pytest.raises(ConfigError, match=r"configs/dgc/wm6.toml: .* did you mean 'configs/dgc/wm"):
        read("--config", "configs/dgc/wm6.toml")
    (tmp_path / "configs/dgc").mkdir(parents=True)
    written(tmp_path / "configs/dgc", "lr = 7\n", "wm5.toml")
    assert read("--config", "configs/dgc/wm5.toml").lr == 7  # one's own goes first
