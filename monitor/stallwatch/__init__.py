"""stallwatch: which rank hung a distributed PyTorch job, where in its code, and what to do.

Importing this package costs nothing: `attach` is loaded when it is first asked for (PEP 562), so that a training
process which only ever imports the name pays for no more than this file.
"""

__version__ = "0.1.0"
__all__ = ["__version__", "attach"]

TYPE_CHECKING = False  # typing's own costs an import
if TYPE_CHECKING:
    from stallwatch.hook import attach


def __getattr__(name: str) -> object:
    if name == "attach":
        from stallwatch.hook import attach

        return attach
    if name == "hook":  # `stallwatch.hook.lightning.callback()` after `import stallwatch` alone
        import stallwatch.hook as hook

        return hook
    raise AttributeError(f"module 'stallwatch' has no attribute {name!r}")
