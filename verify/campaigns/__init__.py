"""Plans of what to verify, and doing them within a time and a memory."""

from pathlib import Path


def campaigns() -> dict[str, Path]:
    """Campaign files that come with the package, by name."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("*.toml"))}
