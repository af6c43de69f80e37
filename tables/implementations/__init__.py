"""Transcribed rules of public code, compared with the derivation. The engine never reads them."""
