"""What goes wrong outside of an environment."""


class TaskError(RuntimeError):
    """Something that a task depends on has failed; the message says what, and what to do."""
