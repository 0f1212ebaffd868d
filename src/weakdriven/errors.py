"""What a user's input or machine can cause, told in one sentence; the command line exits with 2 on it."""

import errno


class UserError(Exception):
    """Says what was found, what was expected and what to do next."""


def explain(error: BaseException) -> str | None:
    """One sentence for an error that the user can mend, or None if it is our own fault."""
    if isinstance(error, UserError):
        return str(error)
    number = getattr(error, "errno", None)
    place = getattr(error, "filename", None) or "the output directory"
    # safetensors reports I/O errors from Rust with no errno
    if number == errno.ENOSPC or "No space left on device" in str(error):
        return f"The disk is full while writing {place}; free some space and run again, nothing finished is lost."
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{place} cannot be written ({error.strerror}); choose a writable --output."  # pyright: ignore
    return None
