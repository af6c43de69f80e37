"""The published tables, transcribed cell by cell. They are for comparing; the engine never reads them."""
