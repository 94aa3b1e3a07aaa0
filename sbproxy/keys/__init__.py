"""Virtual keys and credentials: who calls, what a key allows, what is presented upstream (contracts section 7)."""
