"""Model folders that somebody planted: each is read as numbers or refused in a line, and none of their code runs."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model.model import P2LModel
from p2l.model.tokenizer import load_tokenizer
from p2l.serving.reload import load
from p2l.serving.settings import Settings

Change: TypeAlias = Callable[[Path], object]
PYTHON = "from pathlib import Path\nPath('{mark}').touch()\nclass Planted: pass\n"


@dataclass
class Planted:
    """Runs a command when it is unpickled."""

    mark: Path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.mark}'",)


def mark_of(folder: Path) -> Path:
    """The file that planted code makes."""
    return folder.parent / "ran"


def config(**keys: Any) -> Change:
    return lambda folder: rewrite(folder / "config.json", keys)


def rewrite(file: Path, keys: dict[str, Any]) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def text(name: str, content: str) -> Change:
    return lambda folder: (folder / name).write_text(content.replace("{mark}", str(mark_of(folder))))


def tokenizer(**keys: Any) -> Change:
    return lambda folder: rewrite(folder / "tokenizer.json", keys)


def instead(name: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def pipe(name: str) -> Change:
    return instead(name, os.mkfifo)


def device(name: str) -> Change:
    return instead(name, lambda file: file.symlink_to("/dev/zero"))


def sparse(name: str) -> Change:
    def make(file: Path) -> None:
        file.touch()
        os.truncate(file, 1 << 40)

    return instead(name, make)


def pickled(*names: str, alone: bool = False) -> Change:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).write_bytes(pickle.dumps(Planted(mark_of(folder))))
        if alone:
            (folder / "model.safetensors").unlink()

    return change


def index_of(place: str) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
        text("model.safetensors.index.json", json.dumps({"weight_map": {"model.norm.weight": place}}))(folder)

    return change


def own_code(folder: Path) -> None:
    for name in ("planted", "modeling_qwen2", "configuration_qwen2", "tokenization_planted"):
        text(f"{name}.py", PYTHON)(folder)
    places = {"AutoConfig": "planted.Planted", "AutoModel": "modeling_qwen2.Planted"}
    config(auto_map=places)(folder)
    tokens = {"AutoTokenizer": ["tokenization_planted.Planted"] * 2}
    rewrite(folder / "tokenizer_config.json", {"auto_map": tokens, "tokenizer_class": "Planted"})


SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$|(x+x+)+y"}, "behavior": "Isolated", "invert": False}
REFUSED: dict[str, Change] = {
    "wide": config(hidden_size=10**12),
    "many words": config(vocab_size=10**13),
    "wide inside": config(intermediate_size=10**14),
    "deep": config(num_hidden_layers=10**7),
    "many heads": config(num_attention_heads=10**13),
    "negative": config(hidden_size=-8, vocab_size=-1),
    "halves": config(hidden_size=8.5),
    "text for a number": config(hidden_size="8"),
    "type of elsewhere": config(model_type="../../planted", architectures=["../../planted"]),
    "kinds of layers": config(layer_types=["planted"] * 1000),
    "config is a pipe": pipe("config.json"),
    "names are a pipe": pipe("model_list.json"),
    "weights are a pipe": pipe("model.safetensors"),
    "tokenizer is a pipe": pipe("tokenizer.json"),
    "tokens' settings are a pipe": pipe("tokenizer_config.json"),
    "template is a pipe": pipe("chat_template.jinja"),
    "facts are a pipe": pipe("training_config.json"),
    "config is a device": device("config.json"),
    "names are a device": device("model_list.json"),
    "facts are a device": device("training_config.json"),
    "weights are a device": device("model.safetensors"),
    "config is a terabyte": sparse("config.json"),
    "names are a terabyte": sparse("model_list.json"),
    "names are a folder": instead("model_list.json", Path.mkdir),
    "weights are a folder": instead("model.safetensors", Path.mkdir),
    "names are themselves": instead("model_list.json", lambda file: file.symlink_to(file)),
    "a header of exabytes": lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x3f{}"),
    "a header of brackets": lambda folder: (folder / "model.safetensors").write_bytes(
        (9_000_000).to_bytes(8, "little") + b'{"a":' + b"[" * 8_999_995
    ),
    "weights of elsewhere": index_of("../../../../../../etc/passwd"),
    "weights of the system": index_of("/etc/passwd"),
    "pickled weights alone": pickled("pytorch_model.bin", alone=True),
    "facts nest": text("training_config.json", '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "names nest": text("model_list.json", "[" * 100_000),
    "tokenizer nests": text("tokenizer.json", "[" * 100_000),
    "template reads a file": text("chat_template.jinja", "{% include '/etc/passwd' %}"),
    "template looks around": text("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "template runs a command": text(
        "chat_template.jinja", "{{ cycler.__init__.__globals__.os.system('touch {mark}') }}{{ messages }}"
    ),
    "template counts": text("chat_template.jinja", "{% for i in range(10**9) %}a{% endfor %}"),
    "template calls itself": text("chat_template.jinja", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "posterior of zeros": lambda folder: (folder / "posterior.safetensors").write_bytes(bytes(100)),
    "a million names": text("model_list.json", json.dumps([f"m{number}" for number in range(10**6)])),
}
READ: dict[str, Change] = {
    "code of its own": own_code,
    "pickles beside the weights": pickled("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt"),
    "a type that is code": config(torch_dtype="__import__('os').system('touch {mark}')"),
    "attention of the hub": config(_attn_implementation="planted/kernel"),
    "an adapter of the hub": text(
        "adapter_config.json", '{"base_model_name_or_path": "planted/planted", "peft_type": "LORA"}'
    ),
    "positions without end": config(max_position_embeddings=10**15),
    "a name of elsewhere": config(_name_or_path="/etc/passwd"),
    "words by a slow pattern": tokenizer(pre_tokenizer=SPLIT),
    "a manifest of elsewhere": text("manifest.json", '{"files": {"../../../../etc/passwd": "0"}}'),
}


@pytest.fixture(scope="module")
def sound(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "model"
    encode = load_tokenizer(backbone, max_length=64)
    model = P2LModel.create(
        backbone, model_type="qwen2", head_type="rk", loss_type="grk", model_list=["ant", "bee"], tokenizer=encode
    )
    model.save_pretrained(folder)
    encode.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "model")


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_folder_is_refused_in_one_line(folder: Path, name: str) -> None:
    REFUSED[name](folder)
    with pytest.raises(InputError) as caught:
        P2L.from_pretrained(folder, device="cpu")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000
    assert not mark_of(folder).exists()


@pytest.mark.parametrize("name", READ)
def test_what_a_folder_holds_beside_numbers_is_not_run(folder: Path, sound: Path, name: str) -> None:
    READ[name](folder)
    prompt = [["what is 12 plus 34 " + "a" * 200 + "!"]]
    coefs = P2L.from_pretrained(folder, device="cpu").predict(prompt).coefs
    assert coefs.shape == P2L.from_pretrained(sound, device="cpu").predict(prompt).coefs.shape
    assert not mark_of(folder).exists()


@pytest.mark.usefixtures("warm_children")
def test_a_model_whose_coefficients_are_no_numbers_is_not_served(folder: Path) -> None:
    """Its weights are finite, so that only what it computes shows it."""
    load(Settings(model_path=str(folder), device="cpu"))
    config(rms_norm_eps=float("nan"))(folder)
    with pytest.raises(InputError, match="coefficients are not finite numbers"):
        load(Settings(model_path=str(folder), device="cpu"))
