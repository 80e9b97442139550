-- Gives pandoc the parts of Quarto's Markdown that the report pages use: callouts, tabsets,
-- figures and tables with numbers, cross references, folded code, links between pages.
-- Three passes: number and rebuild blocks (top down), wrap tables, resolve references.

local KINDS = {fig = "Figure", tbl = "Table", sec = "Section", eq = "Equation", lst = "Listing"}
local CALLOUTS = {note = "Note", tip = "Tip", warning = "Warning", important = "Important",
                  caution = "Caution"}
local MISSING = {["-"] = true, ["–"] = true, ["—"] = true, ["n/a"] = true, ["null"] = true}
local numbers = {fig = 0, tbl = 0, eq = 0, lst = 0}
local section_numbers = {}
local references = {}      -- label -> the words a reference to it shows
local number_sections = false
local has_math = false
local root = ""            -- the way from this page to the site's first folder: "" or "../"
local tabset_count, table_count = 0, 0

local function html(text) return pandoc.RawBlock("html", text) end
local function html_inline(text) return pandoc.RawInline("html", text) end
local function escape(text)
  return (text:gsub("[&<>\"]", {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;"}))
end
local function kind_of(label)
  local kind = label and label:match("^(%a+)%-.")
  return KINDS[kind] and kind or nil
end

-- Numbers a label once; the second call for the same label returns what the first one did.
local function register(label)
  local kind = kind_of(label)
  if not references[label] then
    numbers[kind] = numbers[kind] + 1
    references[label] = KINDS[kind] .. "\u{a0}" .. numbers[kind]
  end
  return references[label]
end

local function numbered_caption(label, inlines)
  local prefix = pandoc.Span({pandoc.Str(register(label))}, {class = "caption-number"})
  if #inlines == 0 then return pandoc.Inlines{prefix} end
  return pandoc.Inlines{prefix, pandoc.Space()} .. inlines
end

-- The last paragraph of a figure or table division is its caption.
local function take_caption(blocks)
  local last = blocks[#blocks]
  if last and last.t == "Para" and not (#last.content == 1 and last.content[1].t == "Image") then
    blocks:remove(#blocks)
    return last.content
  end
  return pandoc.Inlines{}
end

local function laid_out(blocks, attributes)
  local columns = tonumber(attributes["layout-ncol"])
  if not columns then return blocks end
  return pandoc.Blocks{pandoc.Div(blocks, {class = "layout", style = "--columns:" .. columns})}
end

-- Figures inside a figure are (a), (b), … of it and do not use up numbers of their own.
local function number_subfigures(parent, blocks)
  local letter = string.byte("a") - 1
  local function number(block)
    if kind_of(block.identifier) ~= "fig" or references[block.identifier] then return nil end
    letter = letter + 1
    local mark = "(" .. string.char(letter) .. ")"
    references[block.identifier] = references[parent] .. "\u{a0}" .. mark
    local words = block.t == "Figure" and pandoc.utils.blocks_to_inlines(block.caption.long)
      or take_caption(block.content)
    local caption = pandoc.Inlines{pandoc.Str(mark), pandoc.Space()} .. words
    return pandoc.Figure(block.content, {long = {pandoc.Plain(caption)}},
                         {id = block.identifier, class = "subfigure"})
  end
  return blocks:walk{Figure = number, Div = number}
end

local function figure_division(div)
  local caption = numbered_caption(div.identifier, take_caption(div.content))
  local content = laid_out(number_subfigures(div.identifier, div.content), div.attributes)
  return pandoc.Figure(content, {long = {pandoc.Plain(caption)}}, {id = div.identifier, class = "figure"})
end

local function table_division(div)
  local caption = numbered_caption(div.identifier, take_caption(div.content))
  return pandoc.Figure(div.content, {long = {pandoc.Plain(caption)}},
                       {id = div.identifier, class = "table-figure"})
end

local function callout(div, name)
  local title = div.attributes.title
  local inlines = title and pandoc.utils.blocks_to_inlines(pandoc.read(title, "markdown").blocks)
  if not inlines and div.content[1] and div.content[1].t == "Header" then
    inlines = div.content:remove(1).content
  end
  inlines = inlines or pandoc.Inlines{pandoc.Str(CALLOUTS[name])}
  local collapse = div.attributes.collapse
  local tag = collapse and "details" or "div"
  local opened = collapse == "false" and " open" or ""
  local id = div.identifier ~= "" and ' id="' .. escape(div.identifier) .. '"' or ""
  local start = ('<%s%s class="callout callout-%s"%s>'):format(tag, id, name, opened)
  local heading = pandoc.Plain({html_inline(collapse and '<summary class="callout-title">'
    or '<p class="callout-title">')} .. inlines .. {html_inline(collapse and "</summary>" or "</p>")})
  -- The body stays one division, so that the walk goes on into it.
  local body = pandoc.Div(div.content, {class = "callout-body"})
  return pandoc.Blocks{html(start), heading, body, html("</" .. tag .. ">")}
end

local function tabset(div)
  tabset_count = tabset_count + 1
  local level, tabs = nil, {}
  for _, block in ipairs(div.content) do
    if block.t == "Header" and (level == nil or block.level <= level) then
      level = block.level
      tabs[#tabs + 1] = {title = block.content, blocks = pandoc.Blocks{}}
    elseif #tabs > 0 then
      tabs[#tabs].blocks:insert(block)
    end
  end
  local group = div.attributes.group and ' data-group="' .. escape(div.attributes.group) .. '"' or ""
  local result = pandoc.Blocks{html('<div class="tabset"' .. group .. '>')}
  local buttons = pandoc.Inlines{}
  for index, tab in ipairs(tabs) do
    local id = ("tab-%d-%d"):format(tabset_count, index)
    buttons = buttons .. {html_inline(('<button type="button" role="tab" id="%s" aria-controls="%s-panel"'
      .. ' aria-selected="%s"%s>'):format(id, id, index == 1 and "true" or "false",
        index == 1 and "" or ' tabindex="-1"'))} .. tab.title .. {html_inline("</button>")}
  end
  result = result .. {html('<div class="tab-list" role="tablist">'), pandoc.Plain(buttons), html("</div>")}
  for index, tab in ipairs(tabs) do
    local id = ("tab-%d-%d"):format(tabset_count, index)
    -- A list keeps the order of attributes; that of a table differs from process to process.
    result:insert(pandoc.Div(tab.blocks, pandoc.Attr(id .. "-panel",
      index == 1 and {"tab-panel", "is-open"} or {"tab-panel"},
      {{"role", "tabpanel"}, {"aria-labelledby", id}, {"data-title", pandoc.utils.stringify(tab.title)}})))
  end
  return result .. {html("</div>")}
end

local function division(div)
  local classes = div.classes
  if classes:includes("content-hidden") and div.attributes["when-format"] == "html" then return {} end
  if classes:includes("content-visible") and (div.attributes["when-format"] or "html") ~= "html" then
    return {}
  end
  for name in pairs(CALLOUTS) do
    if classes:includes("callout-" .. name) then return callout(div, name) end
  end
  if classes:includes("panel-tabset") then return tabset(div) end
  local kind = kind_of(div.identifier)
  if kind == "fig" then return figure_division(div) end
  if kind == "tbl" then return table_division(div) end
  if div.attributes["layout-ncol"] then
    div.content, div.attributes["layout-ncol"] = laid_out(div.content, div.attributes), nil
    return div
  end
end

local function figure(fig)
  if kind_of(fig.identifier) ~= "fig" or references[fig.identifier] then return nil end
  local words = pandoc.utils.blocks_to_inlines(fig.caption.long)
  fig.caption.long = {pandoc.Plain(numbered_caption(fig.identifier, words))}
  return fig
end

-- Options can stand in the fence, {.sql code-fold="true"}, or as leading `#|`, `--|`, `//|` lines.
local function take_cell_options(block)
  while true do
    local key, value, rest = block.text:match("^%s*[#%-/]+|%s*([%w%-]+):%s*([^\n]*)\n?(.*)$")
    if not key then return end
    block.attributes[key] = value:gsub('^"(.*)"$', "%1"):gsub("%s+$", "")
    block.text = rest
  end
end

local function code(block)
  take_cell_options(block)
  local options = block.attributes
  local fold, filename = options["code-fold"], options.filename
  local summary, caption = options["code-summary"] or "Code", options["lst-cap"]
  for _, key in ipairs{"code-fold", "code-summary", "filename", "lst-cap"} do options[key] = nil end
  local label = kind_of(block.identifier) == "lst" and block.identifier or nil
  if label then block.identifier = "" end
  local result = pandoc.Blocks{block}
  if filename then
    result = pandoc.Blocks{html('<div class="code-file"><p>' .. escape(filename) .. "</p>")} .. result
      .. {html("</div>")}
  end
  if fold == "true" or fold == "show" then
    result = pandoc.Blocks{html('<details class="code-fold"' .. (fold == "show" and " open" or "")
      .. "><summary>" .. escape(summary) .. "</summary>")} .. result .. {html("</details>")}
  end
  if label then
    local words = pandoc.utils.blocks_to_inlines(pandoc.read(caption or "", "markdown").blocks)
    return pandoc.Figure(result, {long = {pandoc.Plain(numbered_caption(label, words))}},
                         {id = label, class = "listing"}), false
  end
  return result, false
end

local function header(block)
  if number_sections and not block.classes:includes("unnumbered") then
    local depth = math.max(block.level - 1, 1)
    section_numbers[depth] = (section_numbers[depth] or 0) + 1
    for deeper = depth + 1, 6 do section_numbers[deeper] = nil end
    local parts = {}
    for index = 1, depth do parts[index] = tostring(section_numbers[index] or 1) end
    block.attributes.number = table.concat(parts, ".")
  end
  if kind_of(block.identifier) == "sec" then
    references[block.identifier] = block.attributes.number and "Section\u{a0}" .. block.attributes.number
      or pandoc.utils.stringify(block.content)
  end
  if block.attributes.number then
    block.content = pandoc.Inlines{pandoc.Span({pandoc.Str(block.attributes.number)},
      {class = "section-number"}), pandoc.Space()} .. block.content
    block.attributes.number = nil
  end
  return block
end

-- `$$ … $$ {#eq-name}`: the label is ordinary text to pandoc.
local function equations(inlines)
  local result, formula = pandoc.Inlines{}, nil     -- formula: where the last one is in result
  for _, inline in ipairs(inlines) do
    local label, rest
    if formula and inline.t == "Str" then label, rest = inline.text:match("^{#(eq%-[%w%-_]+)}(.*)$") end
    if label then
      local number = "(" .. register(label):match("%d+$") .. ")"
      local math = result[formula]
      while #result >= formula do result:remove() end
      result:insert(pandoc.Span({math, pandoc.Span({pandoc.Str(number)}, {class = "equation-number"})},
                                {id = label, class = "equation"}))
      if rest ~= "" then result:insert(pandoc.Str(rest)) end
      formula = nil
    else
      result:insert(inline)
      if inline.t == "Math" then formula = #result
      elseif inline.t ~= "Space" and inline.t ~= "SoftBreak" then formula = nil end
    end
  end
  return result
end

-- Each cell of a table is a paragraph, and most pages have no formula to label.
local function paragraph(block)
  if not has_math then return nil end
  block.content = equations(block.content)
  return block
end

-- true for 12, -1,024.5, 3e-4, 87 %, 1.2 GiB, 10.1 ± 0.2; nil for an empty cell; false for words.
local function is_number(cell)
  local text = pandoc.utils.stringify(cell.contents):gsub("\u{2212}", "-")
  if text:match("^%s*$") or MISSING[text] then return nil end
  if text:match("%d%.%d+%.%d") then return false end
  local rest = text:match("^[%+%-~$€≈]*%s*%d[%d,%.]*[eE][%+%-]?%d+(.*)$")
    or text:match("^[%+%-~$€≈]*%s*%d[%d,%.]*(.*)$")
  if not rest then return false end
  return rest == "" or (#rest <= 9 and rest:match("^%s?[^%s%d%-]+$") ~= nil)
    or rest:match("^%s*%S?%S?%S?%s*±%s*%d") ~= nil or rest:match("^%s*–%s*[%+%-]?%d") ~= nil
    or rest:match("^%s*%S?%S?%S?%s*[%[%(][%+%-]?%d") ~= nil
end

-- Numbers are read by their digits, so a column of numbers is set to the right.
local function align_numbers(tbl)
  for column = 1, #tbl.colspecs do
    local seen, all = false, true
    for _, body in ipairs(tbl.bodies) do
      for _, row in ipairs(body.body) do
        local answer = row.cells[column] and is_number(row.cells[column])
        if answer then seen = true elseif answer == false then all = false end
      end
    end
    if seen and all and tbl.colspecs[column][1] == pandoc.AlignDefault then
      tbl.colspecs[column] = {pandoc.AlignRight, tbl.colspecs[column][2]}
    end
  end
end

local function number_table(tbl)
  if kind_of(tbl.identifier) == "tbl" then register(tbl.identifier) end
end

local SCROLL = '<div class="table-scroll" role="region" aria-label="%s" tabindex="0">'

local function wrap_table(tbl)
  align_numbers(tbl)
  table_count = table_count + 1
  local label, words = tbl.identifier, pandoc.utils.blocks_to_inlines(tbl.caption.long)
  local numbered = kind_of(label) == "tbl"
  if numbered then words = numbered_caption(label, words) end
  tbl.identifier, tbl.caption = numbered and "" or label, {long = {}}
  local name = #words > 0 and pandoc.utils.stringify(words) or "Table " .. table_count
  local box = pandoc.Blocks{html(SCROLL:format(escape(name))), tbl, html("</div>")}
  if #words == 0 then return box end
  return pandoc.Figure(box, {long = {pandoc.Plain(words)}},
                       {id = numbered and label or "", class = "table-figure"})
end

local function wrap_raw_table(raw)
  if raw.format == "html" and raw.text:match("^%s*<table") then
    table_count = table_count + 1
    return pandoc.Blocks{html(SCROLL:format("Table " .. table_count)), raw, html("</div>")}
  end
end

local function unknown_reference(label)
  local known = {}
  for name in pairs(references) do
    if kind_of(name) == kind_of(label) then known[#known + 1] = "@" .. name end
  end
  table.sort(known)
  error("unknown reference @" .. label .. "; this page has " ..
    (#known > 0 and table.concat(known, ", ") or "no label of that kind"))
end

local function cite(element)
  local result = pandoc.Inlines{}
  for index, citation in ipairs(element.citations) do
    if not kind_of(citation.id) then return nil end
    local words = references[citation.id] or unknown_reference(citation.id)
    local bare = citation.mode == "SuppressAuthor" or #citation.prefix > 0
    if bare then words = words:gsub("^%a+\u{a0}", "") end
    if index > 1 then result:extend{pandoc.Str(","), pandoc.Space()} end
    if #citation.prefix > 0 then result = result .. citation.prefix .. {pandoc.Str("\u{a0}")} end
    result:insert(pandoc.Link({pandoc.Str(words)}, "#" .. citation.id, "", {class = "cross-reference"}))
    result = result .. citation.suffix
  end
  return result
end

-- "page.qmd#part" becomes "page.html#part"; "/page.qmd" is counted from the site's first folder.
local function target_of(target)
  if target:match("^%a[%w+.-]*:") then return target end
  return (target:gsub("^/", root):gsub("%.qmd$", ".html"):gsub("%.qmd([#?])", ".html%1"))
end

local function link(element)
  element.target = target_of(element.target)
  return element
end

local function image(element)
  element.src = target_of(element.src)
  return element
end

local function saw_math() has_math = true end

local function settings(meta)
  number_sections = meta["number-sections"] == true
  root = meta["site-root"] and pandoc.utils.stringify(meta["site-root"]) or ""
end

return {
  {Meta = settings, Math = saw_math},
  {traverse = "topdown", Div = division, Figure = figure, CodeBlock = code, Header = header,
   Para = paragraph, Plain = paragraph, Table = number_table},
  {Table = wrap_table, RawBlock = wrap_raw_table},
  {Cite = cite, Link = link, Image = image},
}
