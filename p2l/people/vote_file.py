"""All that can be said of a file of votes before it is used: faults, what the votes show, voters to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from p2l.leaderboard.first_look import FirstLook, side_to_control
from p2l.people.cast import CastReader, bursts
from p2l.people.collusion import examine
from p2l.people.voters import VOTER, find_people
from p2l.votes.checking import VoteReport, check_votes, render


@dataclass(frozen=True)
class ExaminedFile:
    """A file of votes that was looked through."""

    report: VoteReport
    shown: list[str]
    """What the votes show beyond chance, a sentence each: sides, lengths, repeats, voters who dominate."""
    voters: list[str]
    """Voters who do not vote like people, alone or together, or in a hurry; a sentence each."""
    has_side: bool
    """Whether the side of an answer decides votes, so that training takes it into account."""

    def text(self) -> str:
        """Return what `p2l votes check` prints."""
        lines = [render(self.report)]
        if self.shown:
            lines += ["what the votes show:", *(f"  {sentence}" for sentence in self.shown)]
        if self.has_side:
            lines.append("  p2l train takes the side into account; --control none leaves it")
        if self.voters:
            lines += ["voters:", *(f"  {sentence}" for sentence in self.voters)]
        return "\n".join(lines)


def examine_file(path: str, **options: Any) -> ExaminedFile:
    """Look a file of votes through once; `options` as `check_votes` takes them. InputError if it cannot be read."""
    looks, cast = list[FirstLook](), CastReader()

    def observe(source: Any) -> Any:
        looks.append(FirstLook(source.columns, source.name))

        def see(*batch: Any) -> None:
            looks[0].add(*batch)
            if VOTER in source.columns:
                cast.add(*batch)

        return see

    report = check_votes(path, observe=observe, **options)
    people = find_people(looks[0].sources, None, report.source.name)
    observations = looks[0].observations(list(report.models), people)
    votes = cast.votes(list(report.models), people)
    return ExaminedFile(
        report,
        shown=[seen.text for seen in observations],
        voters=examine(votes).lines() + bursts(votes),
        has_side=side_to_control(observations) is not None,
    )
