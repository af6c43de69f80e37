"""Rules that public code ships, transcribed, and held against the derivation. The engine never reads them."""
