"""The current text of every function, view and trigger of the database, one file per room.

`*.sql` belong to the schema `pillarbox`; `lifecycle/*.sql` to a lifecycle schema, whose name is
written `{schema}`. Read these files to learn what the database does; tables, indexes and data are
in the migrations alone. Nothing reads these files at run time: migrations change databases.

To change a function, view or trigger:

1. Edit its text here. The comment above it describes it; a comment inside it says why.
2. Run `pytest tests/migration/test_schema_files.py`. It fails, and prints the statements that a
   migration needs: put them into a new file in `store/migrations/`. Add REVOKE EXECUTE ... FROM
   PUBLIC for a new function, and DROP for one that is gone.
3. Run it again. It compares PostgreSQL's own definitions of the migrated database with those that
   these files create; comments and layout are not compared.

A worker of the previous release runs beside this one: a function keeps its name, parameters and
columns; add another one instead (ADR 0029).
"""
