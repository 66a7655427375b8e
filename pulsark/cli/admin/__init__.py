"""Commands that call a running broker over HTTP: topics, policies, schemas, tables and others."""
