"""Plans of what to verify, and their execution within given limits of time and memory."""

from pathlib import Path


def list_campaigns() -> dict[str, Path]:
    """Returns the campaign files that come with the package: name -> path."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
