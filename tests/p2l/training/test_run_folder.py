import errno
import json
from pathlib import Path

import pytest

from p2l.common.errors import CheckpointError, InputError, PeerError
from p2l.training.run_folder import (
    TrainerState,
    finish_checkpoint,
    keep_newest,
    new_run_folder,
    newest_checkpoint,
    read_state,
    unfinished_name,
    whole_or_absent,
)
from p2l.training.trainer import MetricsLog


def state(step: int = 5, **changes: int | str | None) -> TrainerState:
    settings = {"num_votes": 100, "global_batch": 8, "world_size": 1, "zero_stage": 0, "shuffle": True, "seed": 42}
    return TrainerState(step=step, precision="float32", **(settings | changes))  # type: ignore[arg-type]


def save(run: Path, step: int, text: str = "weights") -> Path:
    target = run / f"checkpoint-{step}"
    unfinished_name(target).mkdir(parents=True)
    (unfinished_name(target) / "model.safetensors").write_text(text, encoding="utf-8")
    finish_checkpoint(target, state(step))
    return target


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        save(tmp_path, step)
    (tmp_path / "checkpoint-8").mkdir()  # no checkpoint of the trainer: not its to remove
    keep_newest(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-10", "checkpoint-11", "checkpoint-8"]
    assert newest_checkpoint(tmp_path) == tmp_path / "checkpoint-11"
    keep_newest(tmp_path, 5)
    assert (tmp_path / "checkpoint-10").exists()


def test_a_second_run_of_one_name_gets_a_number(tmp_path: Path) -> None:
    names = [new_run_folder(tmp_path / "out", "run").name for _ in range(3)]
    assert names == ["run", "run_1", "run_2"]


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    save(tmp_path, 5)
    ten = save(tmp_path, 10)
    (tmp_path / "checkpoint-15").mkdir()
    unfinished_name(tmp_path / "checkpoint-20").mkdir()
    assert newest_checkpoint(tmp_path) == ten
    assert newest_checkpoint(ten) == ten
    assert newest_checkpoint(tmp_path / "nothing") is None
    assert read_state(ten) == state(10)


def test_other_votes_are_refused_where_the_checkpoint_knows_its_own(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="other votes"):
        state(votes="abc").check_continues(state(votes="abd"), tmp_path)
    with pytest.raises(CheckpointError, match="num_votes = 100"):
        state(votes="abc").check_continues(state(votes="abd", num_votes=99), tmp_path)
    state(votes="abc").check_continues(state(votes="abc"), tmp_path)
    state(votes=None).check_continues(state(votes="abd"), tmp_path)


def test_another_clipping_is_refused_where_the_checkpoint_knows_its_own(tmp_path: Path) -> None:
    before, now = ({"gradient_clipping": clip, "scheduler": None} for clip in (1.0, 0.5))
    with pytest.raises(CheckpointError, match=r"gradient_clipping = 1\.0, this run has 0\.5"):
        state(update_rule=before).check_continues(state(update_rule=now), tmp_path)
    state(update_rule=before).check_continues(state(9, update_rule=before), tmp_path)
    state(update_rule=None).check_continues(state(update_rule=now), tmp_path)


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    save(tmp_path, 5, "old")
    target = save(tmp_path, 5, "new")
    assert (target / "model.safetensors").read_text(encoding="utf-8") == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_a_kill_in_the_middle_of_a_replacement_is_undone(tmp_path: Path) -> None:
    target = save(tmp_path, 5, "old")
    target.rename(tmp_path / ".checkpoint-5.replaced")
    assert newest_checkpoint(tmp_path) == target
    assert (target / "model.safetensors").read_text(encoding="utf-8") == "old"


def test_a_write_that_the_disk_refuses_names_what_is_left(tmp_path: Path) -> None:
    kept = save(tmp_path, 5)
    target = tmp_path / "checkpoint-10"
    unfinished_name(target).mkdir()
    with pytest.raises(InputError) as caught, whole_or_absent(target):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(kept) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


@pytest.mark.parametrize("error", [TypeError("unsupported operand"), RuntimeError("shapes"), PeerError("ended")])
def test_an_error_that_is_none_of_the_disk_passes_as_it_is(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "checkpoint-10"
    unfinished_name(target).mkdir()
    with pytest.raises(type(error)) as caught, whole_or_absent(target):
        raise error
    assert caught.value is error
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_only_as_it_began(tmp_path: Path) -> None:
    state().check_continues(state(9), tmp_path)
    state(processes=1).check_continues(state(processes=1, world_size=2), tmp_path)  # each has the whole state
    split = {"processes": 1, "zero_stage": 1}
    with pytest.raises(CheckpointError, match="world_size = 1"):
        state(**split).check_continues(state(**split, world_size=2), tmp_path)
    with pytest.raises(CheckpointError, match="world_size = 1"):
        state().check_continues(state(world_size=2), tmp_path)


def test_a_damaged_state_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"step": 3', encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"trainer_state\.json"):
        read_state(tmp_path)


def test_an_output_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(InputError, match="output_dir"):
            new_run_folder(tmp_path / name, "run")


def test_a_log_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path / "metrics.jsonl")


def test_lines_of_a_log_that_are_none_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"epoch": 2}\n[3]\n', encoding="utf-8")
    MetricsLog(path, resume_step=5)
    assert path.read_text(encoding="utf-8") == '{"step": 1}\n'


def test_a_resumed_log_drops_what_the_checkpoint_does_not_hold(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(1, 5):
        log.write(step=step, loss=1.0 / step)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')
    MetricsLog(path, resume_step=3).write(step=4, loss=0.5)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert rows[-1]["loss"] == 0.5
