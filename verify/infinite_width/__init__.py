"""The limit of infinite width with its numbers: what training makes of every signal while experts stay few."""
