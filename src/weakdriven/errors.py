"""Errors that a user can fix, as a message without a traceback; the command line exits with 2 on them."""

import errno

WRITE_FAILURES = ("No space left on device", "inline_container", "PytorchStreamWriter")
"""Parts of the messages of safetensors (from Rust) and torch.save for a full disk, which have no errno."""

NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")
"""Parts of torch's messages for too little memory, on a GPU and on a CPU."""


class UserError(ValueError):
    """An error that a user can fix; its message says what was found, what was expected and what to do next."""


def explain(error: BaseException) -> str | None:
    """Return the message of an error that the user can fix, or None for a bug of ours."""
    if isinstance(error, UserError):
        return str(error)
    place = getattr(error, "filename", None) or "the output directory"
    if is_disk_full(error):
        return f"The disk is full while writing {place}; free some space and run again. Finished stages are kept."
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{place} cannot be written ({error.strerror}); choose a writable --output."
    if is_out_of_memory(error):
        return (
            "Out of memory. Halve micro_batch_size (training), selection.batch_tokens (entropy) or eval.batch_size, or "
            "set gradient_checkpointing: true or activation_offloading: true, and run again. These settings do not "
            "change results, and finished stages are kept."
        )
    return None


def is_disk_full(error: BaseException) -> bool:
    return getattr(error, "errno", None) == errno.ENOSPC or any(words in str(error) for words in WRITE_FAILURES)


def is_out_of_memory(error: BaseException) -> bool:
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in NO_MEMORY)
