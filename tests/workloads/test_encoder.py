"""Pretrained encoders: files that are read, files that are refused, and fine-tuning."""

import itertools
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.absurd import damaged, documents
from workloads.real_format import LEXICON, write_encoder, write_sentences
from workloads.training import trained

from atomo.errors import AtomoError, ConfigError, DataError
from atomo.workloads import Workload, make_task
from atomo.workloads.encoder.folder import OFFLINE

pytestmark = pytest.mark.slow

SMALL = "encoder(folder='tiny', length=64)"
WITHOUT = "needs transformers: `.venv/bin/pip install -e '.[text]'` has it"


@pytest.fixture
def corpus(tmp_path):
    write_sentences(tmp_path / "UIT-VSFC")
    return tmp_path


@pytest.fixture
def folder(corpus, monkeypatch):
    """Returns sentences and an encoder, and makes every use of the network fail."""
    pytest.importorskip("transformers", reason=WITHOUT)
    for name in OFFLINE:
        monkeypatch.setenv(name, "1")  # so that it is what it was, after the test
    write_encoder(corpus / "tiny", LEXICON)

    def refused(*args: object) -> None:
        raise AssertionError("something is fetched")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    return corpus


def opened(folder, spec: str = SMALL) -> Workload:
    return make_task(spec).open("UIT-VSFC", folder)


def built(folder, spec: str = SMALL) -> torch.nn.Module:
    torch.manual_seed(1)
    return opened(folder, spec).build("Encoder")


@pytest.mark.long
@pytest.mark.slow
def test_three_processes_fine_tune_an_encoder(folder):
    # Without dropout, whose random numbers ranks that are threads would share: the same every time.
    task = SMALL.replace(")", ", dropout=0.0)")
    values = trained(folder, task=task, optimizer="adam", lr=0.005, max_steps=120, code="sgd")
    assert values["accuracy"] > 0.9
    assert values["f1"] > 0.9


def test_sentences_are_what_the_tokeniser_makes_of_them(folder):
    (folder / "UIT-VSFC/test/sents.txt").write_text("hay\n" + "thầy không tốt .\n" * 59)
    work = opened(folder)
    tokens, mask = work.test.batch(torch.tensor([0, 1])).inputs
    assert mask.sum(1).tolist() == [3, len(tokens[1])]  # with <s> and </s>
    assert tokens[0].tolist()[::2][:3] == [0, 2, 1]  # <s>, </s>, and padding
    assert (tokens[1] == 3).any()  # <unk>: there is no không
    assert not (tokens[0] == 3).any()


def test_what_a_sentence_is_padded_with_is_not_seen(folder):
    work, network = opened(folder), built(folder).eval()
    pair = work.test.batch(torch.arange(4))
    alone = [network(*work.test.batch(torch.tensor([n])).inputs) for n in range(4)]
    torch.testing.assert_close(network(*pair.inputs), torch.cat(alone))


def test_weights_are_those_of_the_file_and_what_it_lacks_is_drawn_from_the_seed(folder):
    network, again = built(folder), built(folder)
    file = load_file(folder / "tiny/model.safetensors")
    own = network.encoder.state_dict()
    assert own
    for name, tensor in own.items():
        if not name.startswith("pooler."):
            assert tensor.equal(file[f"roberta.{name}"])
    assert all(a.equal(b) for a, b in zip(network.parameters(), again.parameters(), strict=True))
    assert network.training
    assert network.head.weight.shape == (3, 32)
    assert network.dropout.p == 0.3


def test_word_vectors_have_gradients_of_rows_where_the_task_says_so(folder):
    task = SMALL.replace(")", ", dropout=0.0)")
    dense, sparse = built(folder, task), built(folder, task.replace(")", ", sparse=True)"))
    work = opened(folder, task)
    batch = work.train.batch(torch.arange(2))
    for network in (dense, sparse):
        work.objective.loss(network(*batch.inputs), batch.targets).backward()
    whole, rows = (
        network.encoder.get_input_embeddings().weight.grad for network in (dense, sparse)
    )
    assert rows.is_sparse
    torch.testing.assert_close(rows.to_dense(), whole)


def test_weights_may_lie_in_a_bin_of_tensors_alone(folder):
    first = built(folder).state_dict()
    write_encoder(folder / "tiny", LEXICON, safe=False)
    assert (folder / "tiny/pytorch_model.bin").exists()
    assert all(first[name].equal(tensor) for name, tensor in built(folder).state_dict().items())


class Trap:
    def __reduce__(self):
        return os.mkdir, ("sprung",)


def test_a_bin_that_would_run_something_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    write_encoder(folder / "tiny", LEXICON, safe=False)
    torch.save({"a": Trap()}, folder / "tiny/pytorch_model.bin")
    with pytest.raises(DataError, match=r"cannot read the encoder in .*tiny: "):
        built(folder)
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("place", ["config.json", "tokenizer_config.json"])
def test_code_from_a_folder_is_not_run(folder, place, monkeypatch):
    monkeypatch.chdir(folder)
    path = folder / "tiny" / place
    config = json.loads(path.read_text()) if path.exists() else {"tokenizer_class": "Mine"}
    own = {
        "AutoConfig": "mine.Mine",
        "AutoModel": "mine.Mine",
        "AutoTokenizer": ["mine.Mine", None],
    }
    path.write_text(json.dumps(config | {"model_type": "mine", "auto_map": own}))
    (folder / "tiny/mine.py").write_text("import os\nos.mkdir('sprung')\n")
    with pytest.raises(DataError, match=r"cannot read the (tokeniser|encoder) in"):
        built(folder)
    assert not (folder / "sprung").exists()


def test_weights_that_are_not_there_are_named(folder):
    path = folder / "tiny/model.safetensors"
    weights = load_file(path)
    name = "roberta.encoder.layer.0.output.dense.weight"
    save_file({k: v for k, v in weights.items() if k != name}, path, {"format": "pt"})
    with pytest.raises(DataError, match=r"'encoder.layer.0.output.dense.weight', one of 1, is mis"):
        built(folder)
    save_file(weights | {name: torch.zeros(2, 2)}, path, {"format": "pt"})
    with pytest.raises(DataError, match=r"'encoder.layer.0.output.dense.weight', one of 1"):
        built(folder)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"cannot read the encoder in .*tiny: "):
        built(folder)


def test_a_tokeniser_that_cannot_divide_a_sentence_is_named(folder):
    words = {"type": "WordLevel", "vocab": {"<pad>": 0, "a": 1}, "unk_token": "<none>"}
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
    made = dict.fromkeys(parts) | {"version": "1.0", "added_tokens": [], "model": words}
    (folder / "tiny/tokenizer.json").write_text(json.dumps(made))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    (folder / "tiny/tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"cannot read the tokeniser in .*tiny: .*Missing"):
        opened(folder)


@pytest.mark.parametrize(
    "name", ["config.json", "vocab.txt", "bpe.codes", "tokenizer.json", "model.safetensors"]
)
def test_files_of_terabytes_are_not_read(folder, name):
    path = folder / "tiny" / name
    path.touch()
    os.truncate(path, 2**43)
    with pytest.raises(DataError, match=rf"{name} has 8796093022208 bytes; at most \d+ are read"):
        built(folder)


def damage(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Yields each file of an encoder's folder with damaged bytes, and absurd values of its JSON."""
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        absurd = documents(json.loads(good)) if path.suffix == ".json" else ()
        for content in (*damaged(good, 8), *itertools.islice(absurd, 0, None, 17)):
            yield path, content
        path.write_bytes(good)


def test_damaged_folders_are_read_or_refused(folder):
    for path, content in damage(folder / "tiny"):
        path.write_bytes(content)
        with suppress(AtomoError):
            built(folder)


def test_an_encoder_has_places_and_vectors_for_all_tokens(folder):
    with pytest.raises(ConfigError, match=r"length 65 is more than tiny takes \(.*give encoder\(l"):
        built(folder, "encoder(folder='tiny', length=65)")
    with (folder / "tiny/vocab.txt").open("a") as file:
        file.write("more 1\nwords 1\n")
    with pytest.raises(DataError, match=r"the tokeniser in .*tiny has \d+ tokens, and its encoder"):
        built(folder)


def test_a_name_on_a_hub_is_no_folder(corpus):
    message = (
        r"vinai/phobert-base is no folder; nothing is fetched from a hub: put config.json, model"
    )
    with pytest.raises(DataError, match=message):
        opened(corpus, "encoder(folder='vinai/phobert-base')")


def test_who_lacks_the_package_is_told_how_to_install_it(corpus, monkeypatch):
    (corpus / "tiny").mkdir()
    for name in OFFLINE:
        monkeypatch.setenv(name, "0")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ConfigError, match=r"need the package transformers .*pip install 'transformers>=.*brings it"
    ):
        opened(corpus)
    assert [os.environ[name] for name in OFFLINE] == ["1", "1"]  # before it would be imported


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("encoder(length=2)", "length must be 3 to 65536, got 2"),
        ("encoder(dropout=1)", "dropout must be 0 to below 1, got 1.0"),
    ],
)
def test_bad_settings_are_named(spec, message):
    with pytest.raises(ConfigError) as caught:
        make_task(spec)
    assert message in str(caught.value)
