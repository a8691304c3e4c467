"""Migrations of the schema of accounts and tokens, as `store/migrations`; `{schema}` stands for its name."""
