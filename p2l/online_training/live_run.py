"""The parts of a run that follows its votes or publishes models: its stream, its publisher, what it trains anew.

They share the held-out votes, and the signal to stop.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from p2l.common.cli import print_note
from p2l.common.errors import ConfigError
from p2l.common.files import write_json
from p2l.online_training.candidates import HeldVotes
from p2l.online_training.live_trust import LiveTrust
from p2l.online_training.live_votes import LiveVotes, Waiting
from p2l.online_training.online_config import OnlineConfig
from p2l.online_training.publishing import FolderPublisher, make_folder
from p2l.online_training.retraining import Retraining, RetrainingState
from p2l.online_training.router_votes import growing_file
from p2l.online_training.stream import VoteStream, hold_out, in_time_order
from p2l.training import loop
from p2l.training.forecasts import check_counted
from p2l.training.run_records import SERVED_FILE
from p2l.votes import VoteStore

_VOTES_JUDGED_BY = 1000
"""Newest held-out votes that published models are shrunk and judged by."""


def open_data_set(config: OnlineConfig, known_models: Sequence[str]) -> VoteStore:
    """Open the data set of the configuration as a stream; InputError if it is unusable or not in the required order."""
    if config.weigh_voters:
        raise ConfigError(
            "weigh_voters: goes with --follow, a stream of votes; p2l train weighs voters of a whole file"
        )
    stream = in_time_order(loop.open_train_votes(config), config.vote_order, known_models)
    check_counted(stream, config.loss_type, weighted=config.weighted_loss)
    return stream


class LiveRun:
    """Stream and publisher of a live run."""

    def __init__(self, flags: argparse.Namespace, *, held_share: float, learned: int) -> None:
        """Read nothing yet; `learned` votes are in the checkpoint that the run goes on from."""
        self._flags = flags
        self._held_share = held_share
        self._learned = learned
        self._waiting = Waiting(flags.poll, flags.stop_when_idle, tell=self._tell)
        self._held: HeldVotes | None = None
        self._followed: LiveVotes | None = None
        self.trust: LiveTrust | None = None
        """What votes of each voter of the stream weigh; None: all alike."""

    def _tell(self, text: str) -> None:
        if os.environ.get("RANK", "0") == "0" and (not self._flags.quiet or text.startswith("warning")):
            print_note(text)

    def open_stream(self, config: OnlineConfig, known_models: Sequence[str]) -> VoteStream:
        """Return the stream of votes to train on; its model list begins with `known_models`."""
        path, share = self._flags.follow, self._held_share
        if path is None:
            stream, self._held = hold_out(open_data_set(config, known_models), share)
            return stream
        self._waiting.stop_on_signals()
        lines, gather = growing_file(path.expanduser(), self._tell)
        if share:
            self._tell(f"{path}: votes on {share:.1%} of the prompts are kept out of training, to judge models by")
        self._followed = LiveVotes(
            lines,
            model_list=known_models,
            at_least=self._learned,
            held_share=share,
            waiting=self._waiting,
            gather=gather,
            name=str(path),
        )
        self._held = self._followed.held
        if config.weigh_voters:
            self.trust = LiveTrust(self._followed, self._tell)
        return self._followed

    def columns(self) -> dict[str, float]:
        """Return further columns of `metrics.jsonl`: lines and votes of the stream that were left out so far."""
        votes = self._followed
        return {} if votes is None else {"bad_lines": votes.bad_lines, "held_out": len(votes.held)}

    def publisher(self, config: OnlineConfig, folder: Path) -> FolderPublisher:
        """Return what publishes the models of the run in `folder`."""
        flags = self._flags
        target = None if flags.publish is None else flags.publish.expanduser()
        if target is not None:
            if target.resolve() == folder.resolve():
                raise ConfigError(f"--publish {target}: is the folder of the run itself; name another one")
            make_folder(target)
            if os.environ.get("RANK", "0") == "0":  # so that `p2l report` of the run finds what was published
                write_json(folder / SERVED_FILE, {"folder": str(target.resolve())})
        return FolderPublisher(
            config,
            target,
            every_votes=flags.publish_votes,
            every_seconds=None if flags.publish_minutes is None else 60 * flags.publish_minutes,
            keep=flags.publish_keep,
            held=self._held if self._held_share else None,
            gate=flags.gate is not None,
            gate_votes=_VOTES_JUDGED_BY,
            trust=self.trust,
            stop=self._waiting.stop,
            tell=self._tell,
        )

    def retraining(self, config: OnlineConfig, folder: Path, start: loop.Start, began_with: int) -> Retraining | None:
        """Return what trains models anew beside the run in `folder`; None: nothing does."""
        flags, past = self._flags, config.past_data_path
        if flags.retrain is None or self._followed is None:
            return None
        if start.resume is not None:
            state = RetrainingState.of_checkpoint(start.resume)
        else:
            state = RetrainingState.of_model(Path(start.weights or "").expanduser(), has_past=past is not None)
        return Retraining(
            config=config,
            folder=folder / ".retraining",
            served=flags.publish.expanduser(),
            stream=self._followed,
            past=past,
            state=state,
            times=flags.retrain,
            gate_votes=_VOTES_JUDGED_BY,
            trust=self.trust,
            began_with=began_with,
            tell=self._tell,
        )
