"""The published tables, transcribed cell by cell. For comparing only: the engine never reads them."""
