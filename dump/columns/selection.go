package columns

import (
	"context"
	"io"
	"strconv"

	"github.com/parquet-go/parquet-go"

	"sluice/dump"
)

// selRow is one routed slot of a selection dump.
type selRow struct {
	Record int64   `parquet:"record,delta"` // of the file, from 0
	Token  int64   `parquet:"token,delta"`  // of the layer, from 0: joins the layers of one token
	Layer  int32   `parquet:"layer,dict"`
	Slot   int32   `parquet:"slot,dict"`
	Expert int32   `parquet:"expert,dict"`
	Weight float32 `parquet:"weight,split"` // the record's value, NaN and infinities too
}

func (s *Summary) selection(ctx context.Context, w io.Writer, in io.Reader, facts Facts) error {
	pw := parquet.NewGenericWriter[selRow](w, options(parquet.SchemaOf(selRow{}))...)
	var tokens [256]int64
	rows := make([]selRow, 0, blockRows)
	flush := func() error {
		_, err := pw.Write(rows)
		s.Rows += uint64(len(rows))
		rows = rows[:0]
		return err
	}
	r := dump.NewSelReader(in)
	rec, err := r.Next()
	for ; err == nil; rec, err = r.Next() {
		for slot, e := range rec.Expert {
			rows = append(rows, selRow{int64(r.Records()) - 1, tokens[rec.Layer], int32(rec.Layer), int32(slot), e, rec.Weight[slot]})
		}
		tokens[rec.Layer]++
		if len(rows) >= blockRows {
			if err := flush(); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	if err := s.ended(err); err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	s.Records = r.Records()
	set(pw, Facts{"format": dump.SelFormat, "records": strconv.FormatUint(s.Records, 10)}, facts)
	return pw.Close()
}
