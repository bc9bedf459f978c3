"""The error that `tfdp run` answers with a message instead of a traceback."""


class LaunchError(ValueError):
    """What was asked for cannot be started; no worker runs when this is raised."""
