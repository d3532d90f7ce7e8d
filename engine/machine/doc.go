// Package machine reads what this process may use of the computer it runs on: processors by
// affinity and cgroup quota, memory by /proc, cgroup limits and the process's own limits; and what it
// does use of memory, by kind. Every reader takes the root of the file system as an argument, so that
// tests run on fixtures. A file that is missing means no limit from that side. Linux only; elsewhere
// the Go runtime's answers are used.
package machine
