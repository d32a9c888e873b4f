"""What models said of votes, measured by category and beside leaderboards; the command is `p2l.auto_evals`."""

__all__: list[str] = []
