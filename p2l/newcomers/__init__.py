"""A new model joins a trained one: its row from a few votes or answers (`rows`), written into a folder (`adding`,
`command`) or set in a run as its votes come (`online`)."""
