// What Go itself makes of the templates beside this file: `go run reference.go` writes expected.json.
//
// The templates in language.json are given its data as it is, each of those in families/ every
// conversation in conversations.json, the way Ollama's server does. No test needs Go.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"text/template/parse"
)

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}

type Types []string

func (t *Types) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*t = Types{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(t))
}

func (t Types) MarshalJSON() ([]byte, error) {
	if len(t) == 1 {
		return json.Marshal(t[0])
	}
	return json.Marshal([]string(t))
}

func (t Types) String() string {
	if len(t) == 1 {
		return t[0]
	}
	if len(t) == 0 {
		return ""
	}
	return "[" + strings.Join(t, " ") + "]"
}

type Property struct {
	AnyOf       []Property `json:"anyOf,omitempty"`
	Type        Types      `json:"type,omitempty"`
	Items       any        `json:"items,omitempty"`
	Description string     `json:"description,omitempty"`
	Enum        []any      `json:"enum,omitempty"`
	Properties  Properties `json:"properties,omitempty"`
	Required    []string   `json:"required,omitempty"`
}

func (p Property) ToTypeScriptType() string {
	names := map[string]string{
		"string": "string", "number": "number", "integer": "number", "boolean": "boolean",
		"array": "any[]", "object": "Record<string, any>", "null": "null",
	}
	var parts []string
	for _, choice := range p.AnyOf {
		parts = append(parts, choice.ToTypeScriptType())
	}
	if len(parts) == 0 {
		for _, name := range p.Type {
			known, ok := names[name]
			if !ok {
				known = "any"
			}
			parts = append(parts, known)
		}
	}
	if len(parts) == 0 {
		return "any"
	}
	return strings.Join(parts, " | ")
}

type Properties map[string]Property

func (p Properties) String() string { return asJSON(p) }

type Parameters struct {
	Type       string     `json:"type"`
	Defs       any        `json:"$defs,omitempty"`
	Items      any        `json:"items,omitempty"`
	Required   []string   `json:"required,omitempty"`
	Properties Properties `json:"properties"`
}

func (p Parameters) String() string { return asJSON(p) }

type ToolFunction struct {
	Name        string     `json:"name"`
	Description string     `json:"description"`
	Parameters  Parameters `json:"parameters"`
}

func (f ToolFunction) String() string { return asJSON(f) }

type Tool struct {
	Type     string       `json:"type"`
	Items    any          `json:"items,omitempty"`
	Function ToolFunction `json:"function"`
}

func (t Tool) String() string { return asJSON(t) }

type Tools []Tool

func (t Tools) String() string { return asJSON(t) }

type Arguments map[string]any

func (a Arguments) String() string { return asJSON(a) }

type ToolCall struct {
	ID       string `json:"id,omitempty"`
	Function struct {
		Index     int       `json:"index"`
		Name      string    `json:"name"`
		Arguments Arguments `json:"arguments"`
	} `json:"function"`
}

type Message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Thinking   string     `json:"thinking,omitempty"`
	Images     [][]byte   `json:"images,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolName   string     `json:"tool_name,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type Case struct {
	Template string
	Data     any
	Messages []*Message
	Tools    Tools
	Prompt   string
	Suffix   string
	Think    any
}

var functions = template.FuncMap{
	"json":          asJSON,
	"currentDate":   func(...string) string { return "2001-02-03" },
	"yesterdayDate": func(...string) string { return "2001-02-02" },
	"toTypeScriptType": func(v any) string {
		if property, ok := v.(Property); ok {
			return property.ToTypeScriptType()
		}
		return "any"
	},
}

func read(path string, into any) {
	content, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(content, into)
	}
	if err != nil {
		panic(err)
	}
}

func main() {
	var language struct {
		Data      any
		Templates []string
	}
	read("language.json", &language)
	texts := map[string]any{}
	for _, source := range language.Templates {
		texts[source] = textOf(Case{Template: source, Data: language.Data})
	}
	conversations := map[string]Case{}
	read("conversations.json", &conversations)
	families := map[string]map[string]any{}
	paths, _ := filepath.Glob("families/*.gotmpl")
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			panic(err)
		}
		prompts := map[string]any{}
		for name, c := range conversations {
			c.Template = string(source)
			prompts[name] = textOf(c)
		}
		families[strings.TrimSuffix(filepath.Base(path), ".gotmpl")] = prompts
	}
	file, err := os.Create("expected.json")
	if err != nil {
		panic(err)
	}
	out := json.NewEncoder(file)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	if err := out.Encode(map[string]any{"language": texts, "families": families}); err != nil {
		panic(err)
	}
}

// textOf is nil where there is an error, whatever its words.
func textOf(c Case) any {
	text, err := run(c)
	if err != nil {
		return nil
	}
	return text
}

func run(c Case) (string, error) {
	t, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(c.Template)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	if c.Messages == nil && c.Suffix == "" {
		err = t.Execute(&out, c.Data)
		return out.String(), err
	}
	if !mentions(t, "Messages") && !mentions(t, "Response") {
		t = template.Must(t.Parse("")) // the template as it is, and .Response behind it
		extra := template.Must(template.New("").Parse("{{ .Response }}"))
		t.Tree.Root.Nodes = append(t.Tree.Root.Nodes, extra.Tree.Root.Nodes...)
	}
	level, _ := c.Think.(string)
	common := map[string]any{
		"Think":      c.Think != nil && c.Think != false,
		"ThinkLevel": level,
		"IsThinkSet": c.Think != nil,
		"Response":   "",
	}
	with := func(values map[string]any) map[string]any {
		for name, value := range common {
			if _, ok := values[name]; !ok {
				values[name] = value
			}
		}
		return values
	}
	if c.Suffix != "" {
		err = t.Execute(&out, with(map[string]any{"Prompt": c.Prompt, "Suffix": c.Suffix}))
		return out.String(), err
	}
	var system []string
	var joined []*Message
	for _, m := range c.Messages {
		if m.Role == "system" {
			system = append(system, m.Content)
		}
		if n := len(joined); n > 0 && joined[n-1].Role == m.Role && m.Role != "tool" {
			joined[n-1].Content += "\n\n" + m.Content
		} else {
			copied := *m
			joined = append(joined, &copied)
		}
	}
	if mentions(t, "Messages") {
		err = t.Execute(&out, with(map[string]any{
			"System": strings.Join(system, "\n\n"), "Messages": joined, "Tools": c.Tools,
		}))
		return out.String(), err
	}
	now := map[string]any{"System": "", "Prompt": ""}
	flush := func() error {
		err := t.Execute(&out, with(now))
		now = map[string]any{"System": "", "Prompt": ""}
		return err
	}
	said := func(name string) bool { text, _ := now[name].(string); return text != "" }
	for _, m := range joined {
		if (m.Role == "system" && (said("Prompt") || said("Response"))) || (m.Role == "user" && said("Response")) {
			if err := flush(); err != nil {
				return "", err
			}
		}
		if name := map[string]string{"system": "System", "user": "Prompt", "assistant": "Response"}[m.Role]; name != "" {
			now[name] = m.Content
		}
	}
	upToResponse(t.Tree.Root)
	err = flush()
	return out.String(), err
}

func mentions(t *template.Template, name string) bool {
	for _, each := range t.Templates() {
		if strings.Contains(each.Tree.Root.String(), "."+name) {
			return true
		}
	}
	return false
}

// upToResponse drops what stands behind .Response; it stands in an action of its own in all cases.
func upToResponse(list *parse.ListNode) bool {
	if list == nil {
		return false
	}
	for i, node := range list.Nodes {
		found := false
		switch n := node.(type) {
		case *parse.ActionNode:
			found = strings.Contains(n.String(), ".Response")
		case *parse.IfNode:
			body, otherwise := upToResponse(n.List), upToResponse(n.ElseList)
			found = body || otherwise
		}
		if found {
			list.Nodes = list.Nodes[:i+1]
			return true
		}
	}
	return false
}
