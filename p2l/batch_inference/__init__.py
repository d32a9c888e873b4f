"""A model over a whole data set of prompts: read, asked, saved in parts, joined; the command is `p2l.eval`."""

__all__: list[str] = []
