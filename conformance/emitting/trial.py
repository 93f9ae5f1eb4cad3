"""The trial of an emitted test, in a process of its own."""

import json
import runpy
import traceback

__all__ = ["tried"]


def tried(path: str) -> None:
    """Runs the one test function of a file; prints the name of the error that it raises and where in the file.

    Args:
        path: the file. What it prints goes before the last line of the output, which is a JSON list: the error's
            type, empty if there was none, and the number of the line of the file that raised it or called what did.
    """
    names = runpy.run_path(path)
    test = next(value for name, value in names.items() if name.startswith("test_") and callable(value))
    told = ("", 0)
    try:
        test()
    except BaseException as error:  # what a test of pytest fails by is no Exception
        lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        told = (type(error).__name__, lines[-1] if lines else 0)
    print()
    print(json.dumps(told))
