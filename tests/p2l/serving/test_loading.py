import os

from p2l.inference import P2L
from p2l.serving.reload import batch_limits
from p2l.serving.settings import Settings
from p2l.serving.watching import newest_model


def limits(model, **changes):
    return batch_limits(Settings("", cores=2, **changes), model)


def test_a_light_model_is_computed_in_the_event_loop_unless_that_would_hold_it_up(model):
    assert limits(model).streams == 0
    assert limits(model, streams=2).streams == 2
    waiting = limits(model, max_wait_ms=5.0)
    assert (waiting.streams, waiting.wait) == (1, 0.005)
    model.tokenizer.max_length = 8192
    assert limits(model).streams == 1


def test_the_newest_complete_model_is_found(tmp_path, folder):
    assert newest_model(tmp_path) is None
    for number, name in enumerate(["checkpoint-9", "checkpoint-10", "incomplete", ".hidden"]):
        copy = tmp_path / name
        copy.mkdir()
        for file in folder.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        os.utime(copy / "model.safetensors", (number, number))
    (tmp_path / "incomplete" / "model_list.json").unlink()
    assert newest_model(tmp_path) == tmp_path / "checkpoint-10"


def test_a_copy_of_a_model_has_its_revision_and_another_weight_another(tmp_path, folder, other_folder):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    (copy / "metrics.jsonl").write_text("{}")
    revisions = [P2L.from_pretrained(path, device="cpu").revision for path in (folder, copy, other_folder)]
    assert revisions[0] == revisions[1] != revisions[2]
