"""Migrations of the schema of accounts and tokens; `{schema}` stands for its name."""
