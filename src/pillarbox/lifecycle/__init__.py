"""Lifecycle mails: links and codes that follow from changes of accounts in the database."""
