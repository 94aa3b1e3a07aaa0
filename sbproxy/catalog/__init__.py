"""Facts about models and variants (catalog v2) and their resolution to exact files."""
