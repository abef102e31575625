package promql

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// interval is what lies between scrapes, by the clock of the stored samples: the test need not wait for it.
const interval = 15 * time.Second

// prometheus is Prometheus' storage and engine without its server.
type prometheus struct {
	t      *testing.T
	db     *tsdb.DB
	engine *promql.Engine
	parser parser.Parser
	now    time.Time
	names  map[string]bool // of metrics that were scraped or recorded
}

func newPrometheus(t *testing.T) *prometheus {
	t.Helper()
	options := tsdb.DefaultOptions()
	options.RetentionDuration = int64(100 * 24 * time.Hour / time.Millisecond)
	db, err := tsdb.Open(t.TempDir(), nil, nil, options, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 5_000_000, Timeout: patience, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true, Parser: p,
	})
	t.Cleanup(func() {
		if err := errors.Join(engine.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return &prometheus{t: t, db: db, engine: engine, parser: p, now: time.Now().Truncate(interval), names: map[string]bool{}}
}

// scrape stores what address serves under /metrics, as Prometheus does with scrape_native_histograms and always_scrape_classic_histograms.
func (p *prometheus) scrape(address string) {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	samples, err := textparse.New(body, resp.Header.Get("Content-Type"), labels.NewSymbolTable(), textparse.ParserOptions{KeepClassicOnClassicAndNativeHistograms: true})
	if err != nil {
		p.t.Fatal(err)
	}
	to := p.db.Appender(p.t.Context())
	at := timestamp.FromTime(p.now)
	for {
		entry, err := samples.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			p.t.Fatal(err)
		}
		if err := p.store(to, samples, entry, at, address); err != nil {
			p.t.Fatal(err)
		}
	}
	p.add(to, labels.FromStrings("__name__", "up", "job", "kvpilot", "instance", address), 1)
	if err := to.Commit(); err != nil {
		p.t.Fatal(err)
	}
}

// store appends the parser's present sample, with the labels of its target.
func (p *prometheus) store(to storage.Appender, from textparse.Parser, entry textparse.Entry, at int64, instance string) error {
	if entry != textparse.EntrySeries && entry != textparse.EntryHistogram {
		return nil
	}
	var set labels.Labels
	from.Labels(&set)
	series := labels.NewBuilder(set).Set("job", "kvpilot").Set("instance", instance).Labels()
	p.names[series.Get("__name__")] = true
	if entry == textparse.EntryHistogram {
		_, _, h, floats := from.Histogram()
		_, err := to.AppendHistogram(0, series, at, h, floats) // it validates the histogram
		return err
	}
	_, _, v := from.Series()
	_, err := to.Append(0, series, at, v)
	return err
}

func (p *prometheus) add(to storage.Appender, series labels.Labels, v float64) {
	p.t.Helper()
	p.names[series.Get("__name__")] = true
	if _, err := to.Append(0, series, timestamp.FromTime(p.now), v); err != nil {
		p.t.Fatal(err)
	}
}

// ask runs a query now.
func (p *prometheus) ask(query string) (promql.Vector, error) {
	q, err := p.engine.NewInstantQuery(context.Background(), p.db, nil, query, p.now)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(p.t.Context())
	if result.Err != nil {
		return nil, result.Err
	}
	if len(result.Warnings) > 0 {
		return nil, result.Warnings.AsErrors()[0]
	}
	if s, err := result.Scalar(); err == nil {
		return promql.Vector{{F: s.V}}, nil
	}
	v, err := result.Vector()
	return append(promql.Vector(nil), v...), err // q.Close takes v back
}

// record evaluates the recording rules of a group now and stores what they give.
func (p *prometheus) record(group rulefmt.RuleGroup) {
	p.t.Helper()
	to := p.db.Appender(p.t.Context())
	for _, rule := range group.Rules {
		if rule.Record == "" {
			continue
		}
		v, err := p.ask(rule.Expr)
		if err != nil {
			p.t.Errorf("%s: %v", rule.Record, err)
		}
		for _, s := range v {
			series := labels.NewBuilder(s.Metric).Set("__name__", rule.Record)
			for name, value := range rule.Labels {
				series.Set(name, value)
			}
			p.add(to, series.Labels(), s.F)
		}
	}
	if err := to.Commit(); err != nil {
		p.t.Fatal(err)
	}
}
