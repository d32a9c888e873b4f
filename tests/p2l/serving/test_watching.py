"""Models that are copied into a watched folder, however: they are loaded right or not at all."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model.checkpoint import MANIFEST_FILE, model_files, revision_of, seal
from p2l.serving.reload import load
from p2l.serving.settings import Settings
from p2l.serving.watching import Settled, Watch, newest_model

pytestmark = pytest.mark.usefixtures("torch_alone")

PROMPTS = [["what is 1 plus 2"], ["write a poem", "shorter"]]
CHUNK = 20_000
"""Bytes that a copy writes between two moments; `SMALL_CHUNK` in the slow tests, so that there are more moments."""
SMALL_CHUNK = 3_000


@pytest.fixture(scope="module")
def old(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed(folder, tmp_path_factory.mktemp("old") / "model")


@pytest.fixture(scope="module")
def new(other_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model, whose files have the sizes of the old one's, written an hour before."""
    target = sealed(other_folder, tmp_path_factory.mktemp("new") / "model")
    for file in target.iterdir():
        os.utime(file, (1e9, 1e9))
    return target


def sealed(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    seal(target)
    return target


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def files_of(folder: Path) -> list[str]:
    return [*model_files(folder), *([MANIFEST_FILE] if (folder / MANIFEST_FILE).is_file() else [])]


def in_place(source: Path, target: Path, names: list[str], chunk: int = CHUNK) -> Iterator[None]:
    """As `rsync --inplace`, or a slow `cp` over what is there: some bytes at a time."""
    for name in names:
        content = (source / name).read_bytes()
        with (target / name).open("r+b" if (target / name).exists() else "wb") as file:
            for start in range(0, len(content), chunk):
                file.write(content[start : start + chunk])
                file.flush()
                yield
            file.truncate()
        yield


def emptied_first(source: Path, target: Path, names: list[str], chunk: int = CHUNK) -> Iterator[None]:
    """As `cp -p`: each file is emptied, filled, and given the time of the source's."""
    for name in names:
        content = (source / name).read_bytes()
        with (target / name).open("wb") as file:
            for start in range(0, len(content), chunk):
                file.write(content[start : start + chunk])
                file.flush()
                yield
        shutil.copystat(source / name, target / name)
        yield


def by_renaming(source: Path, target: Path, names: list[str], _: int = CHUNK) -> Iterator[None]:
    """As `rsync -a`: each file is whole when it gets its name."""
    for name in names:
        shutil.copy2(source / name, target / f".{name}.part")
        yield
        os.replace(target / f".{name}.part", target / name)
        yield


def with_room_ahead(source: Path, target: Path, names: list[str], chunk: int = CHUNK) -> Iterator[None]:
    """As tools that reserve room: every file has its size before its content."""
    for name in names:
        (target / name).touch()
        os.truncate(target / name, (source / name).stat().st_size)
        yield
    yield from in_place(source, target, names, chunk)


@pytest.mark.parametrize(
    ("seed", "chunk"), [(0, CHUNK), *(pytest.param(seed, SMALL_CHUNK, marks=pytest.mark.slow) for seed in (0, 1, 2))]
)
@pytest.mark.parametrize("over_another", [False, True])
@pytest.mark.parametrize("copy", [in_place, emptied_first, by_renaming, with_room_ahead])
def test_a_sealed_model_is_loaded_right_or_not_at_all_at_every_moment_of_a_copy(
    copy: Callable[[Path, Path, list[str], int], Iterator[None]],
    over_another: bool,
    seed: int,
    chunk: int,
    old: Path,
    new: Path,
    tmp_path: Path,
) -> None:
    expected = P2L.from_pretrained(new, device="cpu").predict(PROMPTS).coefs
    names = files_of(new)
    random.Random(seed).shuffle(names)
    target = tmp_path / "model"
    target.mkdir()
    if over_another:
        shutil.copytree(old, target, dirs_exist_ok=True)
    settings = Settings("", device="cpu", dtype="float32", watch=str(tmp_path))
    watch, revisions = Watch(tmp_path, {}, Clock()), set()
    for _ in copy(new, target, names, chunk):
        for _ in range(2):  # it stalls for long enough
            if path := watch.look():
                try:
                    revisions.add(load(settings, str(path)).model.revision)
                except InputError:
                    watch.failed(path)
    assert revisions <= {revision_of(new), *([revision_of(old)] if over_another else [])}
    watch = Watch(tmp_path, {}, Clock())
    path = next(path for _ in range(3) if (path := watch.look()))
    served = load(settings, str(path))
    np.testing.assert_allclose(served.model.predict(PROMPTS).coefs, expected, atol=1e-6)


@pytest.mark.parametrize("copy", [in_place, emptied_first, by_renaming])
def test_a_model_without_manifest_is_loaded_when_its_files_rest(
    copy: Callable[[Path, Path, list[str]], Iterator[None]], folder: Path, other_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    watch = Watch(tmp_path, {}, Clock())
    for _ in copy(other_folder, tmp_path / "model", files_of(other_folder)):
        assert watch.look() is None
    looks = [watch.look() for _ in range(10)]
    assert looks[3] is None
    assert looks[-1] == tmp_path / "model"
    assert revision_of(tmp_path / "model") == revision_of(other_folder)


def test_a_model_that_changes_while_it_is_loaded_is_not_served(
    old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(old, tmp_path / "model")
    whole = P2L.from_pretrained

    def overwritten_meanwhile(path: str, **options: object) -> P2L:
        model = whole(path, **options)  # type: ignore[arg-type]
        shutil.copytree(new, tmp_path / "model", dirs_exist_ok=True)
        return model

    monkeypatch.setattr(P2L, "from_pretrained", overwritten_meanwhile)
    settings = Settings(str(tmp_path / "model"), device="cpu", dtype="float32", watch=str(tmp_path))
    with pytest.raises(InputError, match="changed while it was loaded"):
        load(settings)


def test_what_arrives_counts_whatever_time_it_bears_and_another_mode_does_not(
    old: Path, new: Path, tmp_path: Path
) -> None:
    shutil.copytree(old, tmp_path / "first")
    watch = Watch(tmp_path, {}, Clock())
    assert [watch.look(), watch.look()] == [None, tmp_path / "first"]
    watch.loaded(tmp_path / "first", revision_of(old))
    shutil.copytree(new, tmp_path / "second")  # with the times of an hour before
    assert newest_model(tmp_path) == tmp_path / "first"
    assert [watch.look(), watch.look()] == [None, tmp_path / "second"]
    watch.loaded(tmp_path / "second", revision_of(new))
    for file in (tmp_path / "first").iterdir():
        file.chmod(0o600)
    assert [watch.look() for _ in range(4)] == [None] * 4
    # Overwritten with files of the same size and time.
    times = (tmp_path / "second" / "model.safetensors").stat()
    for file in old.iterdir():
        shutil.copyfile(file, tmp_path / "second" / file.name)
        os.utime(tmp_path / "second" / file.name, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert tmp_path / "second" in [watch.look() for _ in range(3)]


def test_a_model_that_cannot_be_loaded_is_tried_after_longer_and_longer_pauses(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "bad")
    clock = Clock()
    watch, tries = Watch(tmp_path, {}, clock), 0
    for second in range(3600):
        clock.now = float(second)
        if path := watch.look():
            tries += 1
            watch.failed(path)
    assert 8 <= tries <= 14
    (tmp_path / "bad" / "model.safetensors").touch()  # it was copied again
    assert [watch.look(), watch.look()] == [None, tmp_path / "bad"]


def test_what_was_settled_is_no_news_to_the_next_watch(old: Path, tmp_path: Path) -> None:
    shutil.copytree(old, tmp_path / "model")
    watch = Watch(tmp_path, {}, Clock())
    watch.look()
    watch.look()
    watch.loaded(tmp_path / "model", revision_of(old))
    following = Watch(tmp_path, watch.settled, Clock())
    assert isinstance(following.settled[str(tmp_path / "model")], Settled)
    assert [following.look() for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("damage", ["missing", "foreign", "short", "no manifest"])
def test_an_incomplete_folder_is_no_model_of_a_watched_folder(old: Path, tmp_path: Path, damage: str) -> None:
    model = shutil.copytree(old, tmp_path / "model")
    if damage == "missing":
        (model / "tokenizer_config.json").unlink()
    elif damage == "foreign":
        (model / "chat_template.jinja").write_text("{{ messages }}")
        (model / "vocab.txt").write_text("of another model")
    elif damage == "short":
        os.truncate(model / "model.safetensors", 100)
    else:
        (model / MANIFEST_FILE).unlink()
    assert newest_model(tmp_path) is None
    watch = Watch(tmp_path, {}, Clock())
    assert [watch.look() for _ in range(8)] == [None] * 8
