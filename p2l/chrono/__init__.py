"""Every checkpoint of an online run against validation slices of its time; the command is `p2l.eval_chrono`."""

__all__: list[str] = []
