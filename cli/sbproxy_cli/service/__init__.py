"""`sbproxy service`: one model as a service of this user (contracts section 9)."""
