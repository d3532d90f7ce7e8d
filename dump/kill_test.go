package dump

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The child's orders: mode and path. Set by TestKill for its own re-execution only.
const killEnv = "SLUICE_DUMP_TEST_CHILD"

// TestKillChild is the process that TestKill kills. It records one record and one trace row at a time and prints after
// each batch when it was done and how many there are.
func TestKillChild(t *testing.T) {
	mode, path, ok := strings.Cut(os.Getenv(killEnv), ":")
	if !ok {
		t.Skip(killEnv + " is not set: this is the child of TestKill")
	}
	w := openSel(t, path)
	rw := openSelRows(t, path+".several")
	tw, err := CreateTrace(path+".csv", TraceMeta{})
	must(t, err)
	for start := time.Now(); mode == "busy" || time.Since(start) < 200*time.Millisecond; {
		for range 10 {
			must(t, w.Record(3, 1, 3, []int32{287, 0, 42}, []float32{0.5, 0.25, 1}))
			recordFor(t, rw, 3, 3, []Row{{Seq: int32(rw.Records() % 5), Step: int32(rw.Records())}}, int64(rw.Records())+1)
			must(t, tw.Call(&TraceCall{T: 1, K: 1, Expert: []int32{1}}))
		}
		fmt.Println("recorded", time.Now().UnixNano(), w.Records(), tw.Rows())
		time.Sleep(500 * time.Microsecond)
	}
	time.Sleep(time.Minute) // quiet: the run waits for its user
}

// A kill -9 loses at most the last second, of a busy recording and of one that went quiet.
func TestKill(t *testing.T) {
	for _, c := range []struct {
		mode  string
		after time.Duration
	}{{"busy", 2600 * time.Millisecond}, {"quiet", 2200 * time.Millisecond}} {
		t.Run("mode="+c.mode, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.sel.bin")
			cmd := exec.Command(os.Args[0], "-test.run=^TestKillChild$", "-test.v")
			cmd.Env = append(os.Environ(), killEnv+"="+c.mode+":"+path)
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			var killed time.Time
			timer := time.AfterFunc(c.after, func() { killed = time.Now(); cmd.Process.Kill() })
			defer timer.Stop()

			type receipt struct {
				at            int64
				records, rows uint64
			}
			var receipts []receipt
			for sc := bufio.NewScanner(out); sc.Scan(); {
				var r receipt
				if n, _ := fmt.Sscanf(sc.Text(), "recorded %d %d %d", &r.at, &r.records, &r.rows); n == 3 {
					receipts = append(receipts, r)
				}
			}
			if err := cmd.Wait(); err == nil || killed.IsZero() {
				t.Fatalf("child ended by itself: %v", err)
			}
			// A second, and what a loaded machine may add between a record and the next chance to flush.
			safe := killed.Add(-flushInterval - 500*time.Millisecond).UnixNano()
			var want, last receipt
			for _, r := range receipts {
				if last = r; r.at <= safe {
					want = r
				}
			}
			if want.records == 0 {
				t.Skip("the child was too slow to record anything before the last second")
			}
			if c.mode == "quiet" && want != last {
				t.Skip("the child was too slow to fall quiet")
			}

			data := readFile(t, path)
			recs, _, err := readSel(bytes.NewReader(data))
			if err != io.EOF {
				t.Errorf("dump: %v", err)
			}
			if n := uint64(len(recs)); n < want.records {
				t.Errorf("%d records in the file, %d were made before the last second", n, want.records)
			}
			pairs, p, err := readPairs(bytes.NewReader(readFile(t, path+".several")), bytes.NewReader(readFile(t, path+".several.rows")))
			if err != io.EOF || uint64(len(pairs)) < want.records || p.RowsTorn() != nil {
				t.Errorf("several sequences: %v, %d records, %d were made before the last second; %v", err, len(pairs), want.records, p.RowsTorn())
			}
			for i, p := range pairs {
				if !p.Known || p.Row != (PassRow{Row{Seq: int32(i % 5), Step: int32(i)}, int64(i) + 1}) {
					t.Fatalf("record %d is of %+v (%t)", i, p.Row, p.Known)
				}
			}
			csv, err := os.Open(path + ".csv")
			must(t, err)
			defer csv.Close()
			tr, err := NewTraceReader(csv)
			must(t, err)
			for row := (TraceRow{}); err == nil; {
				err = tr.Next(&row)
			}
			if !errors.Is(err, io.EOF) || tr.Rows() < want.rows {
				t.Errorf("%d rows in the trace, %d were made before the last second; %v", tr.Rows(), want.rows, err)
			}
			t.Logf("killed after %v with %d made, %d in the file, %d safe", c.after, last.records, len(recs), want.records)
			// The lock died with the process.
			must(t, openSel(t, path).Close())
			must(t, openSelRows(t, path+".several").Close())
		})
	}
}
