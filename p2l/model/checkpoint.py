"""Model folders: local or on the hub, their JSON files, safetensors weights, fingerprint and manifest.

Only safetensors is read or written: a pickled file can run code when it is opened.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from p2l.common.errors import CheckpointError, ConfigError, InputError, hub_reason
from p2l.common.files import parse_json

if TYPE_CHECKING:
    from torch import Tensor, nn


WEIGHTS_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
MODEL_LIST_FILE = "model_list.json"
COVARIATES_FILE = "covariates.json"
"""What covariates the votes had, of a model that was trained with any."""
_TEXT_SUFFIXES = (".json", ".jinja", ".txt")
_MAX_TEXT_BYTES = 2**28
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(/[\w./-]+)?|[\w-]+")
# Weights that some writers keep and that a model without generation head or pooler does not have.
_IGNORED_WEIGHTS = re.compile(r"(^|\.)(lm_head\.|pooler\.|cls\.predictions\.)|rotary_emb\.inv_freq$|position_ids$")


@dataclass(frozen=True)
class P2LRecord:
    """The part of config.json that describes the head, under the key `p2l`."""

    model_type: str
    head_type: str
    loss_type: str
    linear_head_downsize_factor: int | None = None
    linear_head_width: int | None = None
    """Inner width of a low-rank head whose model list grows; None: outputs // linear_head_downsize_factor."""
    head_config: dict[str, Any] | None = None
    max_length: int | None = None
    pooling: str = "cls"


def local_folder(path: str | Path) -> Path:
    """Return the folder of a local path or hub id, downloading into the hub's cache; CheckpointError for neither."""
    try:
        folder = Path(path).expanduser()
    except RuntimeError as error:  # ~somebody who is unknown
        raise CheckpointError(f"{path}: no such folder ({error})") from error
    if folder.is_dir():
        # A pipe, a device or a text of gigabytes would be read without end, or until memory is full.
        for file in (*folder.glob("*"), *folder.glob("*/*")):
            try:
                status = file.stat()
            except OSError:
                continue  # a link to nothing is missed where it is needed
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise CheckpointError(f"{file}: is neither a file nor a folder; copy the folder again")
            if file.suffix in _TEXT_SUFFIXES and status.st_size > _MAX_TEXT_BYTES:
                raise CheckpointError(f"{file}: is larger than {_MAX_TEXT_BYTES >> 20} MiB; no model has such a file")
        return folder
    if folder.exists():
        raise CheckpointError(f"{path}: is a file; give the folder that holds it")
    if not _HUB_ID.fullmatch(str(path)):
        raise CheckpointError(f"{path}: no such folder")
    return _download(str(path))


def read_json(file: Path, *, missing: Any = None) -> Any:
    """Read a JSON file, or return `missing` where there is none; CheckpointError if it is absent or malformed."""
    try:
        return parse_json(file.read_text("utf-8"))
    except FileNotFoundError as error:
        if missing is not None:
            return missing
        raise CheckpointError(f"{file}: no such file; the folder is not a complete model") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}; copy it again") from error


def covariate_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the covariates that a folder's model was trained with; maybe none."""
    file = folder / COVARIATES_FILE
    return tuple(read_object(file).get("names", ())) if file.is_file() else ()


def read_object(file: Path, *, missing: Any = None) -> dict[str, Any]:
    """Read a JSON object as `read_json` does; CheckpointError for any other JSON."""
    content = read_json(file, missing=missing)
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must be a JSON object, not {type(content).__name__}; copy it again")
    return content


def write_json(file: Path, content: Any) -> None:
    """Write indented JSON with a newline at the end."""
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def read_model_list(folder: Path) -> list[str]:
    """Read the model names in the order of the coefficients; CheckpointError unless they are distinct."""
    file = folder / MODEL_LIST_FILE
    names = read_json(file)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise CheckpointError(f"{file}: must be a JSON list of model names, one for each coefficient")
    for number, name in enumerate(names):
        if re.search("[\ud800-\udfff]", name):  # no response, file or terminal could hold it
            raise CheckpointError(f"{file}: name {number} has half a character (a lone surrogate); correct the list")
    if len(set(names)) != len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise CheckpointError(f"{file}: names {twice!r:.200} twice; every model has one coefficient")
    return names


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors file of a folder, or the shards of its index; CheckpointError if one is missing."""
    index = folder / _INDEX_FILE
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if not index.is_file():
        if any(folder.glob("pytorch_model*.bin")):
            raise CheckpointError(
                f"{folder}: holds only pickled weights (pytorch_model.bin), which are not opened because they can run "
                "code; convert them to model.safetensors"
            )
        raise CheckpointError(f"{folder}: holds no weights ({WEIGHTS_FILE})")
    shards = sorted({folder / name for name in _weight_map(index).values()})
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(f"{shard}: no such file, but {_INDEX_FILE} names it; copy the folder again")
    return shards


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read names and shapes of all weights of a folder from the headers of its files."""
    shapes: dict[str, tuple[int, ...]] = {}
    files = _weight_files(folder)
    for _, handle in _open_all(files, "np"):
        for name in handle.keys():  # noqa: SIM118 (a safetensors handle is not a mapping)
            shapes[name] = tuple(handle.get_slice(name).get_shape())
    promised = _weight_map(folder / _INDEX_FILE) if files != [folder / WEIGHTS_FILE] else {}
    for name, shard in promised.items():
        if name not in shapes:
            raise CheckpointError(
                f"{folder / shard}: lacks {name}, which {_INDEX_FILE} promises; copy the folder again"
            )
    return shapes


def load_weights(module: nn.Module, folder: Path) -> None:
    """Copy a folder's weights into `module`, cast to its dtype; CheckpointError unless all fit and are finite."""
    import torch

    targets = module.state_dict()
    check_fit(folder, {name: tuple(tensor.shape) for name, tensor in targets.items()}, weight_shapes(folder))
    with torch.no_grad():
        for _, handle in _open_all(_weight_files(folder), "pt"):
            for name in handle.keys():  # noqa: SIM118
                if name in targets:
                    targets[name].copy_(handle.get_tensor(name))
    check_finite(folder, targets)


def check_fit(folder: Path, expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError unless the stored weights of a folder have the names and shapes that are expected."""
    lacking = [name for name in expected if name not in stored]
    unknown = [name for name in stored if name not in expected and not _IGNORED_WEIGHTS.search(name)]
    for fault, names in (("lacks the weights", lacking), ("has unknown weights", unknown)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise CheckpointError(f"{folder}: {fault} {names[0]}{more}; is this the right model type, head and folder?")
    for name, shape in expected.items():
        if stored[name] != shape:
            raise CheckpointError(f"{folder}: {name} has shape {stored[name]}, config.json and flags ask for {shape}")


_NOT_FINITE = "holds values that are not finite; copy or train it again"
_NUMPY_TYPES = {"F16": "<f2", "F32": "<f4"}


class MappedWeights(dict[str, "npt.NDArray[np.floating[Any]]"]):
    """Weights by their names, which are read from disk where they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = list[mmap.mmap]()
        """The files in memory."""

    def let_go(self) -> None:
        """Give back the memory of what was read; where it is used again it is read again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
            for mapped in self.maps:
                mapped.madvise(mmap.MADV_DONTNEED)


def map_weights(folder: Path) -> MappedWeights:
    """Return a folder's weights in float16 and float32 as arrays that are read from disk where they are used.

    CheckpointError if a file is damaged, holds another type, or values that are not finite. No file may be written into
    meanwhile.
    """
    weights = MappedWeights()
    weight_shapes(folder)  # the library checks the headers
    for file in _weight_files(folder):
        with file.open("rb") as opened:  # OpenVINO takes no array that is read-only; nothing is written
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        weights.maps.append(mapped)
        content = np.frombuffer(mapped, np.uint8)
        # The format: eight bytes with the length of the header, the header in JSON, the tensors.
        start = 8 + int(content[:8].view("<u8")[0])
        for name, entry in json.loads(content[8:start].tobytes()).items():
            if name == "__metadata__" or _IGNORED_WEIGHTS.search(name):
                continue
            if entry["dtype"] not in _NUMPY_TYPES:
                raise CheckpointError(f"{file}: {name} is in {entry['dtype']}; float16 and float32 are read here")
            first, last = (start + place for place in entry["data_offsets"])
            dtype = np.dtype(_NUMPY_TYPES[entry["dtype"]])
            # Read apart from the map, of which the pages that were touched count as memory of the process.
            values = np.fromfile(file, dtype, (last - first) // dtype.itemsize, offset=first)
            if not np.isfinite(values.sum(dtype=np.float64)):
                raise CheckpointError(f"{folder}: {name} {_NOT_FINITE}")
            weights[name] = np.asarray(content[first:last].view(dtype).reshape(entry["shape"]))
    return weights


def check_finite(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a weight is not finite, because every coefficient would be."""
    for name, tensor in weights.items():
        # The sum nearly always decides, without allocating another tensor of that size.
        if tensor.is_floating_point() and not (tensor.sum().isfinite() or tensor.isfinite().all()):
            raise CheckpointError(f"{folder}: {name} {_NOT_FINITE}")


def save_weights(state_dict: Mapping[str, Tensor], folder: Path, *, max_shard_size: str = "5GB") -> None:
    """Write safetensors into `folder`, sharded above `max_shard_size`; CheckpointError if that fails."""
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state_dict.items()}
    try:
        save_torch_state_dict(tensors, folder, max_shard_size=max_shard_size, metadata={"format": "pt"})
        _follow_umask(_weight_files(folder))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: weights cannot be written: {error}") from error


def save_arrays(weights: Mapping[str, npt.NDArray[Any]], folder: Path) -> None:
    """Write NumPy's arrays as the weights of `folder`, in one file; CheckpointError if that fails."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(weights), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: weights cannot be written: {error}") from error
    _follow_umask([folder / WEIGHTS_FILE])


def edit_weights(folder: Path, changes: Mapping[str, Callable[[Tensor], None]]) -> None:
    """Change weights of a folder in place, by name; CheckpointError if a file cannot be read or written."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    for file in _weight_files(folder):
        try:
            weights = load_file(file)
            names = changes.keys() & weights.keys()
            for name in names:
                changes[name](weights[name])
            if names:
                save_file(weights, file, metadata={"format": "pt"})
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: cannot be changed: {error}") from error
        _follow_umask([file])


def _follow_umask(files: Iterable[Path]) -> None:
    """Give files the default mode; safetensors makes them readable by their owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    for file in files:
        file.chmod(0o666 & ~mask)


def _weight_map(index: Path) -> dict[str, str]:
    """Read which shard holds which weight."""
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise CheckpointError(f"{index}: has no weight_map from weights to files; copy it again")
    return shards


def _open_all(paths: Iterable[Path], library: str) -> Iterator[tuple[Path, Any]]:
    from safetensors import SafetensorError, safe_open

    for path in paths:
        try:
            with safe_open(path, library) as handle:
                yield path, handle
        except PermissionError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}; change its mode or owner") from error
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: damaged or cut short ({error}); copy it again") from error


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    # owner/name/checkpoint-512 is the folder checkpoint-512 of the hub's owner/name.
    owner_and_name, subfolder = "/".join(hub_id.split("/")[:2]), "/".join(hub_id.split("/")[2:])
    inside = f"{subfolder}/" if subfolder else ""
    patterns = [f"{inside}*.{ending}" for ending in ("json", "jinja", "model", "safetensors", "txt")]
    try:
        # Nothing below the folder: the checkpoints of a run would come along.
        root = snapshot_download(owner_and_name, allow_patterns=patterns, ignore_patterns=[f"{inside}*/*"])
        if (Path(root) / subfolder / "modules.json").is_file():  # of sentence-transformers: how states are pooled
            snapshot_download(owner_and_name, allow_patterns=[f"{inside}?_*/config.json"])
    except Exception as error:  # network, authorisation, no such repository: every client error ends here
        problem = f"neither a local folder nor a hub id that can be reached ({hub_reason(error)})"
        raise InputError(f"{hub_id}: {problem}") from error
    folder = Path(root) / subfolder
    if not folder.is_dir():
        raise CheckpointError(f"{hub_id}: the hub's {owner_and_name} has no folder {subfolder!r}")
    return folder


_REVISION_DIGITS = 12  # hexadecimal digits: among a million models two collide by chance once in 500
_CHUNK_BYTES = 1 << 22
# The files that coefficients depend on; reports, optimizer states and notes may change beside them.
_MODEL_FILES = re.compile(
    r"(config|model_list|training_config|covariates|tfidf|added_tokens|vocab)\.json"
    r"|(tokenizer|special_tokens|model\.safetensors)[\w.-]*\.json"
    r"|(chat_template|additional_chat_templates)[\w.-]*|merges\.txt|vocab\.txt|[\w.-]+\.(safetensors|model)"
)


def model_files(folder: Path) -> dict[str, Path]:
    """Return the files that coefficients depend on, by their names below the folder, in the order of these."""
    files = (
        (file.relative_to(folder).as_posix(), file)
        for file in folder.glob("*")
        if file.is_file() and _MODEL_FILES.fullmatch(file.name)
    )
    return dict(sorted(files))


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file that coefficients depend on."""
    digests = {}
    for name, file in model_files(folder).items():
        digest = hashlib.sha256()
        try:
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):  # weights may be larger than memory
                    digest.update(chunk)
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
        digests[name] = digest.hexdigest()
    return digests


def revision_of(folder: Path) -> str:
    """Return 12 hexadecimal digits of the SHA-256 of a model folder's files."""
    return joint_revision(digests_of(folder))


def joint_revision(digests: Mapping[str, str]) -> str:
    """Return the revision of a folder whose files have these digests."""
    whole = hashlib.sha256()
    for name, digest in digests.items():
        whole.update(f"{name}\0{digest}\n".encode())
    return whole.hexdigest()[:_REVISION_DIGITS]


# The manifest: `manifest.json` is written with the folder, and config.json says that there is one, so that a partial
# copy can be told from a whole one in whichever order its files arrive. Folders of other writers have no manifest; of
# them only the names of required files are checked.

MANIFEST_FILE = "manifest.json"
_COPY_AGAIN = "copy the folder again, or wait until it is copied"
_HOW_TO_UNSEAL = f"if you changed it on purpose, delete {MANIFEST_FILE}, and 'manifest' in the configuration"


def seal(folder: Path) -> None:
    """Write the manifest of a folder in which every file of the model is."""
    config = read_object(folder / "config.json")
    config.setdefault("p2l", {})["manifest"] = True
    write_json(folder / "config.json", config)
    sizes = {name: file.stat().st_size for name, file in model_files(folder).items()}
    files = {name: {"size": sizes[name], "sha256": digest} for name, digest in digests_of(folder).items()}
    write_json(folder / MANIFEST_FILE, {"files": files})


class Stamp(NamedTuple):
    """The state of a folder's files in the file system: equal stamps, equal files."""

    files: str
    """Their names, sizes, times of writing and inodes."""
    changes: str
    """Times when their inodes changed, which also tell a file that was written and given an older time."""


def stamp_of(folder: Path) -> Stamp | None:
    """Return the stamp of a folder's files; None while they come and go."""
    try:
        files = model_files(folder) | {MANIFEST_FILE: folder / MANIFEST_FILE}
        states = {name: file.stat() for name, file in files.items() if name != MANIFEST_FILE or file.exists()}
    except OSError:
        return None
    of_files = [f"{name} {state.st_size} {state.st_mtime_ns} {state.st_ino}" for name, state in states.items()]
    return Stamp("\n".join(of_files), " ".join(str(state.st_ctime_ns) for state in states.values()))


def check_complete(folder: Path) -> None:
    """Raise CheckpointError unless every file is there, in the size that the manifest says where there is one."""
    if not (folder / MODEL_LIST_FILE).is_file():
        raise CheckpointError(f"{folder}: lacks {MODEL_LIST_FILE}; {_COPY_AGAIN}")
    recorded = _recorded_files(folder)
    if recorded is None:
        return
    _check_names(folder, recorded, model_files(folder))
    for name, fields in recorded.items():
        size = (folder / name).stat().st_size
        if size != fields.get("size"):
            raise CheckpointError(f"{folder / name}: has {size} bytes, not those of {MANIFEST_FILE}; {_COPY_AGAIN}")


def check_contents(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise CheckpointError unless the files' SHA-256 are those of the manifest, where there is one."""
    recorded = _recorded_files(folder)
    if recorded is None:
        return
    _check_names(folder, recorded, digests)
    for name, digest in digests.items():
        if digest != recorded[name].get("sha256"):
            raise CheckpointError(
                f"{folder / name}: is not the file of which {MANIFEST_FILE} speaks; {_COPY_AGAIN}; {_HOW_TO_UNSEAL}"
            )


def _recorded_files(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the manifest's record of each file; None for a folder without a manifest that names none."""
    record = read_object(folder / "config.json").get("p2l")
    is_named = isinstance(record, dict) and bool(record.get("manifest"))
    if not is_named and not (folder / MANIFEST_FILE).is_file():
        return None
    files = read_object(folder / MANIFEST_FILE).get("files")
    if not isinstance(files, dict) or not all(isinstance(fields, dict) for fields in files.values()):
        raise CheckpointError(f"{folder / MANIFEST_FILE}: records no files; {_COPY_AGAIN}")
    return files


def _check_names(folder: Path, recorded: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    if missing := sorted(recorded.keys() - files.keys()):
        raise CheckpointError(f"{folder}: lacks {missing[0]}; {_COPY_AGAIN}")
    if foreign := sorted(files.keys() - recorded.keys()):
        raise CheckpointError(
            f"{folder / foreign[0]}: is none of the files of {MANIFEST_FILE}; {_COPY_AGAIN}; {_HOW_TO_UNSEAL}"
        )


# Validation rows contain users' prompts, so they are not pushed.
_NOT_PUSHED = ["checkpoint-*", ".*", "eval_output.jsonl"]


def check_can_push(repo_id: str | None) -> None:
    """Check before training that the result can be pushed; ConfigError or InputError if it cannot."""
    if not repo_id:
        raise ConfigError("--push-to-hf needs the key 'repo_id' in the configuration; add it")
    from huggingface_hub import HfApi

    try:
        HfApi().whoami()
        exists = HfApi().repo_exists(repo_id)
    except Exception as error:  # the hub client raises its HTTP library's errors too
        raise InputError(
            f"--push-to-hf: the hub does not answer for you ({type(error).__name__}); log in first"
        ) from error
    if exists:
        raise ConfigError(f"key 'repo_id': {repo_id} exists on the hub; choose another name")


def push(folder: Path, repo_id: str | None) -> None:
    """Upload a run's model, without checkpoints and validation rows, to a new private repository."""
    assert repo_id is not None
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repo_id, private=True, exist_ok=False)
        HfApi().upload_folder(repo_id=repo_id, folder_path=folder, ignore_patterns=_NOT_PUSHED)
    except Exception as error:
        raise InputError(
            f"pushing {folder} to {repo_id} failed: {type(error).__name__}; the model is on disk"
        ) from error
