package profile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// DeviceLogName is the file beside an ops CSV whose first line carries the chip's frequency.
const DeviceLogName = "profile_log_device.csv"

// DeviceLogLine is that first line.
func DeviceLogLine(arch string, freqMHz float64) string {
	return fmt.Sprintf("ARCH: %s, CHIP_FREQ[MHz]: %s", arch, strconv.FormatFloat(freqMHz, 'f', -1, 64))
}

var chipFreq = regexp.MustCompile(`CHIP_FREQ\[MHz\]:\s*([0-9.]+)`)

// ChipFreqMHz looks for the device log of an ops CSV beside it, one folder up, and in .logs of both, and returns the
// first frequency found and the log it stands in; 0 and "" when there is none. A log whose frequency is no number is
// an error.
func ChipFreqMHz(csvPath string) (mhz float64, log string, err error) {
	dir := filepath.Dir(csvPath)
	up := filepath.Dir(dir)
	for _, name := range []string{filepath.Join(dir, DeviceLogName), filepath.Join(up, DeviceLogName),
		filepath.Join(dir, ".logs", DeviceLogName), filepath.Join(up, ".logs", DeviceLogName)} {
		line, err := firstLine(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		} else if err != nil {
			return 0, "", fmt.Errorf("profile: %w", err)
		}
		m := chipFreq.FindSubmatchIndex(line)
		if m == nil {
			continue
		}
		text := line[m[2]:m[3]]
		mhz, ok := parseNumber(text)
		if !ok {
			return 0, "", &Error{File: name, Line: 1, Msg: fmt.Sprintf("CHIP_FREQ[MHz] %.40q is not a number", text)}
		}
		if mhz > 0 {
			return mhz, name, nil
		}
		return 0, "", nil
	}
	return 0, "", nil
}

// firstLine reads at most 64 KiB of it: the rest of a device log is megabytes of timestamps.
func firstLine(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, err
	}
	line, err := bufio.NewReader(io.LimitReader(f, 64<<10)).ReadBytes('\n')
	if err != nil && err != io.EOF {
		return nil, err
	}
	if i := bytes.IndexByte(line, '\r'); i >= 0 {
		line = line[:i]
	}
	return line, nil
}
