"""The mails of an account's life: links and codes that follow from changes in the database, in the right words."""
