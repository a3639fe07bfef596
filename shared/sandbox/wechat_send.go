package sandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// send is POST /cgi-bin/message/subscribe/send.
func (w *WeChat) send(rw http.ResponseWriter, r *http.Request) {
	token := r.URL.Query().Get("access_token")
	if refused := w.checkKnown(token); refused.code != 0 {
		writeWeChatResponse(rw, refused)
		return
	}
	var body struct {
		OpenID     string          `json:"touser"`
		TemplateID string          `json:"template_id"`
		Page       string          `json:"page"`
		Data       json.RawMessage `json:"data"`
		State      string          `json:"miniprogram_state"`
		Lang       string          `json:"lang"`
	}
	err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, wechatBody)).Decode(&body)
	s := &WeChatSend{At: time.Now(), OpenID: body.OpenID, TemplateID: body.TemplateID, Page: body.Page, Data: body.Data,
		State: body.State, Lang: body.Lang}
	w.mu.Lock()
	w.sends = append(w.sends, s)
	if w.o.Keep > 0 && len(w.sends) > w.o.Keep {
		w.sends = slices.Delete(w.sends, 0, len(w.sends)-w.o.Keep)
	}
	f, cleared := w.nextFault(func(f WeChatFault) bool { return f.matchesSend(s) })
	w.mu.Unlock()

	w.serveWithFault(rw, f, cleared, func(execute bool) any {
		w.mu.Lock()
		response := wechatResult{f.Errcode, "injected fault"}
		if execute {
			response = w.process(s, token, err)
		}
		s.Errcode, s.Delivered, s.Fault = response.code, execute && response.code == 0, f.String()
		line := *s
		w.mu.Unlock()
		w.logf("%s", line)
		return response
	})
}

// process does what WeChat does with a call, and returns WeChat's response. It counts the call for the option Daily
// and, if the message is delivered, uses up one consent for the option OneTime. The caller holds w.mu.
func (w *WeChat) process(s *WeChatSend, token string, malformed error) wechatResult {
	page, _, _ := strings.Cut(s.Page, "?")
	keyword, problem := badKeyword(s.Data)
	grant := wechatGrant{s.OpenID, s.TemplateID}
	if refused := w.checkValid(token); refused.code != 0 {
		return refused
	}
	switch {
	case !w.withinDay():
		return wechatResult{45009, "reach max api daily quota limit"}
	case malformed != nil:
		return wechatResult{47001, "data format error"}
	case !exists(w.o.OpenIDs, s.OpenID):
		return wechatResult{40003, "invalid openid"}
	case !exists(w.o.Templates, s.TemplateID):
		return wechatResult{40037, "invalid template_id"}
	case page != "" && !exists(w.o.Pages, page):
		return wechatResult{41030, "invalid page"}
	case problem != "":
		return wechatResult{47003, fmt.Sprintf("argument invalid! data.%s.value %s", keyword, problem)}
	case w.o.OneTime && w.grants[grant] == 0:
		return wechatResult{43101, "user refuse to accept the msg"}
	case w.o.OneTime:
		w.grants[grant]--
	}
	return wechatResult{0, "ok"}
}

// withinDay reports whether the option Daily allows one more call today in Asia/Shanghai, and counts an allowed call.
func (w *WeChat) withinDay() bool {
	if day := time.Now().In(time.FixedZone("Asia/Shanghai", 8*60*60)).Format(time.DateOnly); day != w.day {
		w.day, w.callsOfDay = day, 0
	}
	if w.o.Daily > 0 && w.callsOfDay >= w.o.Daily {
		return false
	}
	w.callsOfDay++
	return true
}

func exists(known []string, name string) bool {
	return name != "" && (len(known) == 0 || slices.Contains(known, name))
}

// badKeyword returns a keyword (a field of the data) that WeChat would refuse: one without a value, or one of the type
// "thing" whose value has more than 20 characters. It does not check the values of other types.
func badKeyword(raw json.RawMessage) (name, problem string) {
	var data map[string]struct {
		Value any `json:"value"`
	}
	if json.Unmarshal(raw, &data) != nil || len(data) == 0 {
		return "keyword", "is empty"
	}
	for name, keyword := range data {
		switch text := fmt.Sprint(keyword.Value); {
		case keyword.Value == nil || text == "":
			return name, "is empty"
		case strings.HasPrefix(name, "thing") && len([]rune(text)) > 20:
			return name, "invalid"
		}
	}
	return "", ""
}
