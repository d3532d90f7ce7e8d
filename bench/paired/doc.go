// Package paired compares two programs by figures that were measured by turns: in each round one of each, near in time, so that
// what the machine does besides hits both alike. It holds the statistics of the ratios and the counting of one command's
// instructions; bench/scripts/oldnew.sh measures.
package paired
