"""What workers agree on, and what one that starts late makes of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from p2l.common.errors import InputError
from p2l.inference import P2L
from p2l.model import openvino
from p2l.model.checkpoint import Stamp
from p2l.serving import reload
from p2l.serving.reload import Control, catch_up
from p2l.serving.settings import Settings
from p2l.serving.watching import Settled


def test_targets_set_at_the_same_time_have_numbers_of_their_own(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        targets = list(pool.map(lambda number: Control(tmp_path).set_target(f"model {number}"), range(40)))
    assert sorted(target.generation for target in targets) == list(range(1, 41))
    assert Control(tmp_path).target() == max(targets, key=lambda target: target.generation)


def test_one_worker_watches_for_all_and_leaves_what_it_decided_to_the_next(tmp_path):
    control = Control(tmp_path)
    assert control.settled() is None
    with control.turn("watch") as first, Control(tmp_path).turn("watch") as second:
        assert (first, second) == (True, False)
        control.settle({"a": Settled(Stamp("files", "changes"), "revision"), "b": Settled(Stamp("", ""))})
    with Control(tmp_path).turn("watch") as third:
        assert third
        assert Control(tmp_path).settled() == {
            "a": Settled(Stamp("files", "changes"), "revision"),
            "b": Settled(Stamp("", "")),
        }


def test_only_one_has_the_turn(tmp_path):
    with Control(tmp_path).turn("reload") as first, Control(tmp_path).turn("reload") as second:
        assert (first, second) == (True, False)
    with Control(tmp_path).turn("reload") as third:
        assert third


@pytest.mark.parametrize("removed", [False, True])
def test_a_worker_that_starts_late_serves_what_the_others_serve(tmp_path, folder, other_folder, removed):
    control = Control(tmp_path)
    settings = Settings(str(tmp_path / "removed") if removed else str(folder), device="cpu", dtype="float32")
    if not removed:
        assert catch_up(settings, control)[1] == 0
    control.set_target(str(other_folder))
    control.keep(str(other_folder))
    control.set_target(str(tmp_path / "nothing"))
    served, generation = catch_up(settings, control)
    assert served.path == str(other_folder)
    assert generation == 2


def test_a_worker_without_any_model_says_so(tmp_path):
    control = Control(tmp_path)
    control.set_target(str(tmp_path / "nothing"))
    with pytest.raises(InputError):
        catch_up(Settings(str(tmp_path / "nowhere"), device="cpu", dtype="float32"), control)


def test_a_heavy_model_gets_its_cores_after_a_light_one(folder, monkeypatch):
    model, settings = P2L.from_pretrained(folder, device="cpu"), Settings(str(folder), cores=3)
    threads = torch.get_num_threads()
    try:
        assert reload.batch_limits(settings, model).streams == 0
        torch.set_num_threads(1)  # as a light model is computed
        monkeypatch.setattr(openvino, "_LIGHT_WEIGHTS", 0)
        heavy = reload.batch_limits(settings, model)
        assert (heavy.streams, heavy.threads) == (3, 3)
    finally:
        torch.set_num_threads(threads)
