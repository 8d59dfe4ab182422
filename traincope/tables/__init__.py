"""A run as Arrow tables: one schema for SQL, data frames and Parquet.

`views` lists the tables, and each table has one file that makes it. `query` answers SQL on them by DuckDB. A table is
made when it is first asked for, from a `Timeline` or its analysis. Only importing a module of this package needs
pyarrow.
"""
