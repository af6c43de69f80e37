"""Tables: published ones, the same ones derived, and the audit between them."""
