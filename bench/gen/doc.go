// Package gen writes synthetic recordings of any size, for tests and speed measurements of what reads recordings: a
// selection dump (WriteDump) and a route trace (WriteTrace), through package dump's writers. What is in them follows a
// simple model of routing, said at each, and depends on the seed alone. It is not for conclusions about models.
package gen
